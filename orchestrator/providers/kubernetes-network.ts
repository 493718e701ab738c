/** NetworkPolicies of sandboxes: nothing comes in, and out goes only what the environment says. */
import { isIP } from 'node:net'
import {
  commonLabels,
  INSTANCE,
  type Install,
  MANAGED_BY,
  type Manifest,
  type Meta,
  NETWORK,
  ownerReference,
  sha256,
} from './kubernetes-pod.ts'

/** What a sandbox may reach, with names looked up. */
export interface Reachable {
  /** null: the world but private addresses. */
  readonly egress: readonly Target[] | null
  readonly gateway: Target
}

/** A `host:port` and the addresses that it has now. */
export interface Target {
  readonly host: string
  readonly port: number
  readonly addresses: readonly string[]
}

interface Rule {
  readonly to: readonly Readonly<Record<string, unknown>>[]
  readonly ports?: readonly { readonly protocol: 'TCP' | 'UDP'; readonly port: number }[]
}

/** Private, shared, loopback and link-local networks: the cluster's own, and the cloud's metadata service. */
const PRIVATE_4 = ['10.0.0.0/8', '100.64.0.0/10', '127.0.0.0/8', '169.254.0.0/16', '172.16.0.0/12', '192.168.0.0/16']
const PRIVATE_6 = ['fc00::/7', 'fe80::/10', '::1/128']

/** Labels of the server's pods, as deploy/kubernetes sets them. */
const SERVER_LABELS = { 'app.kubernetes.io/name': 'hangar', 'app.kubernetes.io/component': 'server' }

/** `host:port` of a URL. */
export function targetOf(url: string): Omit<Target, 'addresses'> {
  const { hostname, port, protocol } = new URL(url)
  return {
    host: hostname.replace(/^\[(.*)\]$/, '$1'),
    port: Number(port === '' ? (protocol === 'https:' ? 443 : 80) : port),
  }
}

/** `host:port` of a setting. */
export function parseTarget(text: string): Omit<Target, 'addresses'> {
  const colon = text.lastIndexOf(':')
  return { host: text.slice(0, colon).replace(/^\[(.*)\]$/, '$1'), port: Number(text.slice(colon + 1)) }
}

/** The namespace of a service's name in the cluster (`hangar.tools.svc`), the sandboxes' own of a bare `hangar`; null: no such name. */
export function serviceNamespace(host: string, own: string): string | null {
  if (isIP(host) !== 0) return null
  const [, namespace, kind] = host.split('.')
  if (namespace === undefined) return own
  return kind === 'svc' ? namespace : null
}

/** A policy, and the value of `hangar.dev/network` that its pods bear; it bears the same itself. */
export interface NetworkRules {
  readonly label: string
  readonly policy: Manifest
}

/** The policy of all sandboxes that may reach the same; its name and the label `hangar.dev/network` come from its rules. */
export function networkManifest(install: Install, reachable: Reachable, owner: Meta): NetworkRules {
  const egress = rulesOf(install, reachable)
  const label = sha256(JSON.stringify(egress)).slice(0, 12)
  return {
    label,
    policy: {
      apiVersion: 'networking.k8s.io/v1',
      kind: 'NetworkPolicy',
      metadata: {
        name: `hangar-${install.instance}-${label}`,
        namespace: install.namespace,
        labels: { ...commonLabels(install), [NETWORK]: label },
        ownerReferences: ownerReference(owner),
      },
      spec: {
        podSelector: { matchLabels: { [MANAGED_BY]: 'hangar', [INSTANCE]: install.instance, [NETWORK]: label } },
        policyTypes: ['Ingress', 'Egress'],
        egress,
      },
    },
  }
}

function rulesOf(install: Install, { egress, gateway }: Reachable): Rule[] {
  const targets = [gateway, ...(egress ?? [])]
  const needsNames = egress === null || targets.some(({ host }) => isIP(host) === 0)
  return [
    ruleTo(install, gateway, SERVER_LABELS),
    ...(egress === null ? [world()] : egress.map((target) => ruleTo(install, target, {}))),
    ...(needsNames ? [nameServers()] : []),
  ]
}

/** A policy's port is the pods' own, so a service must listen on the port that its pods do. */
function ruleTo(install: Install, { host, port, addresses }: Target, labels: Readonly<Record<string, string>>): Rule {
  const ports = [{ protocol: 'TCP', port }] as const
  const namespace = serviceNamespace(host, install.namespace)
  if (namespace === null)
    return {
      to: addresses.map((address) => ({ ipBlock: { cidr: `${address}/${isIP(address) === 6 ? 128 : 32}` } })),
      ports,
    }
  const namespaceSelector = { matchLabels: { 'kubernetes.io/metadata.name': namespace } }
  return { to: [{ namespaceSelector, podSelector: { matchLabels: labels } }], ports }
}

function world(): Rule {
  return {
    to: [{ ipBlock: { cidr: '0.0.0.0/0', except: PRIVATE_4 } }, { ipBlock: { cidr: '::/0', except: PRIVATE_6 } }],
  }
}

function nameServers(): Rule {
  return {
    to: [
      {
        namespaceSelector: { matchLabels: { 'kubernetes.io/metadata.name': 'kube-system' } },
        podSelector: { matchLabels: { 'k8s-app': 'kube-dns' } },
      },
    ],
    ports: [
      { protocol: 'UDP', port: 53 },
      { protocol: 'TCP', port: 53 },
    ],
  }
}
