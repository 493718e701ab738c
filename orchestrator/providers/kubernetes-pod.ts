/** The objects that the kubernetes provider makes: a pod a sandbox, after the restricted Pod Security Standard, and what owns it. */
import { createHash } from 'node:crypto'
import type { SandboxPaths, SandboxSpec } from '../../domain/sandbox.ts'

/** Settings of the `kubernetes` group. */
export interface KubernetesSettings {
  readonly namespace: string
  /** The gateway as pods reach it; null: not set. */
  readonly gatewayUrl: string | null
  readonly nodeSelector: Readonly<Record<string, string>>
  readonly runtimeClass: string | null
}

/** Which install makes the objects: other installs in the same namespace are left alone. */
export interface Install extends KubernetesSettings {
  /** A label value of its own. */
  readonly instance: string
}

/** The fields of any object that are looked at here. */
export interface Meta {
  readonly name: string
  readonly uid?: string
  readonly labels?: Readonly<Record<string, string>>
  readonly annotations?: Readonly<Record<string, string>>
  readonly creationTimestamp?: string
  readonly deletionTimestamp?: string
  readonly resourceVersion?: string
}

/** An object as it goes to the API server. */
export interface Manifest {
  readonly apiVersion: string
  readonly kind: string
  readonly metadata: Readonly<Record<string, unknown>> & { readonly name: string }
  readonly [field: string]: unknown
}

export const MANAGED_BY = 'app.kubernetes.io/managed-by'
export const INSTANCE = 'hangar.dev/instance'
const SANDBOX = 'hangar.dev/sandbox'
/** The annotation with the sandbox's id in full. */
export const SANDBOX_ID = 'hangar.dev/sandbox-id'
const SESSION = 'hangar.dev/session'
export const NETWORK = 'hangar.dev/network'
const SPEC_HASH = 'hangar.dev/spec-hash'
/** The container that runs turns. */
export const CONTAINER = 'agent'

/** Last resort, also when the control plane is gone for good. */
const LIFE_SECONDS = 7 * 24 * 3_600

/** Where things are in every pod. */
export const POD_PATHS: SandboxPaths & { readonly run: string; readonly hangar: string } = {
  home: '/home/agent',
  repo: '/home/agent/repo',
  grantFile: '/run/hangar/grant',
  helperDir: '/hangar/bin',
  run: '/run/hangar',
  hangar: '/hangar',
}

/** The first process: it adopts and reaps what others leave, and goes at once when it is told to. */
const INIT = 'trap "exit 0" TERM INT; while :; do sleep 3600 & wait $!; done'

/** The name of a sandbox's pod, always the same for its id: making it twice gives one. At most 58 characters of a DNS label. */
export function podName(id: string): string {
  const readable = id
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, '-')
    .replace(/^-+/, '')
    .slice(0, 45)
    .replace(/-+$/, '')
  return `hgs-${readable === '' ? 's' : readable}-${sha256(id).slice(0, 8)}`
}

/** A label selector for all that this install has made. */
export function selectorOf({ instance }: Install): string {
  return `${MANAGED_BY}=hangar,${INSTANCE}=${instance}`
}

/** The ConfigMap that owns every pod and policy of the install: deleting it deletes them all. */
export function ownerManifest(install: Install): Manifest {
  return {
    apiVersion: 'v1',
    kind: 'ConfigMap',
    metadata: { name: `hangar-${install.instance}`, namespace: install.namespace, labels: commonLabels(install) },
    data: { about: 'Owner of all sandboxes of one hangar server: deleting it deletes them.' },
  }
}

/** A reference for `metadata.ownerReferences`; never to the server's own pod, whose restart would delete all sandboxes. */
export function ownerReference(owner: Meta): readonly Readonly<Record<string, unknown>>[] {
  return [{ apiVersion: 'v1', kind: 'ConfigMap', name: owner.name, uid: owner.uid ?? '' }]
}

/** The pod of a sandbox. Nothing secret is in it: the grant is put in when it runs. `image` may not be null. */
export function podManifest(
  install: Install,
  spec: SandboxSpec,
  more: { readonly owner: Meta; readonly network: string },
): Manifest {
  const podSpec = podSpecOf(install, spec)
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: {
      name: podName(spec.id),
      namespace: install.namespace,
      labels: {
        ...labelsOf(spec.labels),
        ...commonLabels(install),
        [SESSION]: labelValue(spec.session),
        [SANDBOX]: labelValue(spec.id),
        [NETWORK]: more.network,
      },
      annotations: {
        [SPEC_HASH]: sha256(JSON.stringify(podSpec)),
        [SANDBOX_ID]: spec.id,
        'hangar.dev/repo': spec.repo,
      },
      ownerReferences: ownerReference(more.owner),
    },
    spec: podSpec,
  }
}

function podSpecOf(install: Install, spec: SandboxSpec) {
  const mounts = [
    { name: 'home', mountPath: POD_PATHS.home },
    { name: 'repo', mountPath: POD_PATHS.repo },
    { name: 'tmp', mountPath: '/tmp' },
    { name: 'hangar', mountPath: POD_PATHS.hangar },
    { name: 'run', mountPath: POD_PATHS.run },
  ]
  return {
    restartPolicy: 'Never',
    activeDeadlineSeconds: LIFE_SECONDS,
    automountServiceAccountToken: false,
    enableServiceLinks: false,
    terminationGracePeriodSeconds: 10,
    ...(install.runtimeClass === null ? {} : { runtimeClassName: install.runtimeClass }),
    ...(Object.keys(install.nodeSelector).length === 0 ? {} : { nodeSelector: install.nodeSelector }),
    securityContext: {
      runAsNonRoot: true,
      runAsUser: 1000,
      runAsGroup: 1000,
      fsGroup: 1000,
      fsGroupChangePolicy: 'OnRootMismatch',
      seccompProfile: { type: 'RuntimeDefault' },
    },
    containers: [
      {
        name: CONTAINER,
        image: spec.image,
        // The image's own entry point is not used.
        command: ['sh', '-c', INIT],
        // Nothing of the agent's own: it could be closed to every command that comes in.
        workingDir: '/',
        env: [{ name: 'HOME', value: POD_PATHS.home }],
        securityContext: {
          allowPrivilegeEscalation: false,
          readOnlyRootFilesystem: true,
          capabilities: { drop: ['ALL'] },
        },
        resources: resourcesOf(spec),
        volumeMounts: mounts,
      },
    ],
    volumes: [
      { name: 'repo', emptyDir: { sizeLimit: '10Gi' } },
      { name: 'home', emptyDir: { sizeLimit: '10Gi' } },
      { name: 'tmp', emptyDir: { sizeLimit: '4Gi' } },
      { name: 'hangar', emptyDir: { sizeLimit: '16Mi' } },
      { name: 'run', emptyDir: { sizeLimit: '1Gi' } },
    ],
  }
}

/** No limit of processors unless it is asked for, since that slows more than it protects; one of memory always. */
function resourcesOf({ limits }: SandboxSpec) {
  const memory = `${limits.memoryMb ?? 4096}Mi`
  const cpu = limits.cpu === null ? null : `${Math.round(limits.cpu * 1000)}m`
  return {
    requests: {
      cpu: limits.cpu !== null && limits.cpu < 0.5 ? `${Math.round(limits.cpu * 1000)}m` : '500m',
      memory: `${Math.min(limits.memoryMb ?? 4096, 1024)}Mi`,
      'ephemeral-storage': '2Gi',
    },
    limits: { ...(cpu === null ? {} : { cpu }), memory, 'ephemeral-storage': '20Gi' },
  }
}

/** Labels of everything that the install makes. */
export function commonLabels({ instance }: Install): Record<string, string> {
  return { [MANAGED_BY]: 'hangar', [INSTANCE]: instance }
}

function labelsOf(labels: Readonly<Record<string, string>>): Record<string, string> {
  return Object.fromEntries(Object.entries(labels).map(([name, value]) => [name, labelValue(value)]))
}

/** The nearest value that a label may have: 63 characters of letters, digits, `.`, `_`, `-`, the outer ones letters or digits. */
function labelValue(text: string): string {
  return text
    .replace(/[^A-Za-z0-9._-]/g, '-')
    .slice(0, 63)
    .replace(/^[^A-Za-z0-9]+|[^A-Za-z0-9]+$/g, '')
}

export function sha256(text: string): string {
  return createHash('sha256').update(text).digest('hex')
}
