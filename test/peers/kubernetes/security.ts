/** The "restricted" Pod Security Standard, as far as a pod of one kind of container can break it. Source: Kubernetes' Pod Security Standards page. */
import type { ApiObject } from './objects.ts'

/** What a pod breaks, in words; none when it may be made. */
export function restrictedViolations({ spec }: ApiObject): string[] {
  const found: string[] = []
  const say = (broken: boolean, words: string) => {
    if (broken) found.push(words)
  }
  for (const field of ['hostNetwork', 'hostPID', 'hostIPC']) say(spec[field] === true, field)
  const allowed = [
    'configMap',
    'csi',
    'downwardAPI',
    'emptyDir',
    'ephemeral',
    'persistentVolumeClaim',
    'projected',
    'secret',
    'name',
  ]
  for (const volume of spec.volumes ?? [])
    say(
      Object.keys(volume).some((key) => !allowed.includes(key)),
      `volume ${volume.name} is of a forbidden kind`,
    )
  for (const container of [...(spec.containers ?? []), ...(spec.initContainers ?? [])]) {
    const own = container.securityContext ?? {}
    const value = (field: string) => own[field] ?? spec.securityContext?.[field]
    const name = `container ${container.name}`
    say(own.privileged === true, `${name} is privileged`)
    say(own.allowPrivilegeEscalation !== false, `${name} must set allowPrivilegeEscalation=false`)
    say(!(own.capabilities?.drop ?? []).includes('ALL'), `${name} must drop ALL capabilities`)
    say(
      (own.capabilities?.add ?? []).some((cap: string) => cap !== 'NET_BIND_SERVICE'),
      `${name} adds capabilities`,
    )
    say(value('runAsNonRoot') !== true, `${name} must set runAsNonRoot=true`)
    say(value('runAsUser') === 0, `${name} must not run as root`)
    say(!['RuntimeDefault', 'Localhost'].includes(value('seccompProfile')?.type), `${name} must set a seccompProfile`)
    say(
      (container.ports ?? []).some((port: { hostPort?: number }) => port.hostPort !== undefined),
      `${name} has a hostPort`,
    )
  }
  return found
}
