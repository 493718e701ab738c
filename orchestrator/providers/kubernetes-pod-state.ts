/** What a pod's status says: whether its sandbox is there, and if not, why, in a sentence. */
import { CONTAINER, type Meta } from './kubernetes-pod.ts'

/** The part of a pod that is looked at. */
export interface Pod {
  readonly metadata: Meta
  readonly spec?: { readonly nodeName?: string }
  readonly status?: {
    readonly phase?: string
    readonly reason?: string
    readonly message?: string
    readonly conditions?: readonly {
      readonly type: string
      readonly status: string
      readonly reason?: string
      readonly message?: string
    }[]
    readonly containerStatuses?: readonly {
      readonly name: string
      readonly state?: {
        readonly waiting?: { readonly reason?: string; readonly message?: string }
        readonly running?: { readonly startedAt?: string }
        readonly terminated?: { readonly reason?: string; readonly exitCode?: number; readonly message?: string }
      }
    }[]
  }
}

export type PodState =
  | { readonly kind: 'pending'; readonly why: string; readonly hope: 'good' | 'small' | 'none' }
  | { readonly kind: 'up' }
  | { readonly kind: 'ended'; readonly reason: string }

/** Waiting reasons that only a person mends. */
const HOPELESS =
  /^(InvalidImageName|ErrImageNeverPull|CreateContainerConfigError|CreateContainerError|RunContainerError|CrashLoopBackOff)$/

function hopeOf(reason: string): 'good' | 'small' | 'none' {
  if (HOPELESS.test(reason)) return 'none'
  // A first `ErrImagePull` may pass by itself; this says that it came again.
  return reason === 'ImagePullBackOff' ? 'small' : 'good'
}

/** Read from the container's own state first: a phase alone says too little, and comes late. */
export function podState(pod: Pod): PodState {
  const { status } = pod
  const state = status?.containerStatuses?.find(({ name }) => name === CONTAINER)?.state
  const disrupted = status?.conditions?.find(({ type, status }) => type === 'DisruptionTarget' && status === 'True')
  const ended = (reason: string): PodState => ({ kind: 'ended', reason })
  const because = (words: string | undefined) => (words === undefined || words === '' ? '' : `: ${words}`)
  if (disrupted !== undefined && (pod.metadata.deletionTimestamp !== undefined || isOver(pod)))
    return ended(`its pod was evicted (${disrupted.reason ?? 'disruption'})${because(disrupted.message)}`)
  if (status?.reason === 'Evicted') return ended(`its pod was evicted${because(status.message)}`)
  if (status?.reason === 'DeadlineExceeded') return ended('its pod was older than pods of hangar may be, and was ended')
  if (isNodeLost(pod))
    return ended(`the node ${pod.spec?.nodeName ?? ''} of its pod is lost${because(status?.message)}`)
  const terminated = state?.terminated
  if (outOfMemory(pod))
    return ended('its pod was ended by the kernel for want of memory (OOMKilled); raise limits.memory_mb')
  // That its container ended comes of it.
  if (pod.metadata.deletionTimestamp !== undefined) return ended('its pod was deleted')
  if (terminated !== undefined)
    return ended(
      `its pod ended (${terminated.reason ?? 'no reason'}, exit status ${terminated.exitCode ?? 'unknown'})${because(terminated.message)}`,
    )
  if (isOver(pod)) return ended(`its pod ended (${status?.reason ?? status?.phase ?? ''})${because(status?.message)}`)
  if (state?.running !== undefined) return { kind: 'up' }
  const waiting = state?.waiting
  if (waiting?.reason !== undefined && waiting.reason !== 'ContainerCreating' && waiting.reason !== 'PodInitializing')
    return { kind: 'pending', why: `${waiting.reason}${because(waiting.message)}`, hope: hopeOf(waiting.reason) }
  const unscheduled = status?.conditions?.find(({ type, status }) => type === 'PodScheduled' && status === 'False')
  if (unscheduled !== undefined)
    return {
      kind: 'pending',
      why: `${unscheduled.reason ?? 'Unschedulable'}${because(unscheduled.message)}`,
      hope: 'good',
    }
  return { kind: 'pending', why: `its phase is ${status?.phase ?? 'not known yet'}`, hope: 'good' }
}

/** Whether nothing is heard of the pod's node any more. */
export function isNodeLost({ status }: Pod): boolean {
  return status?.phase === 'Unknown' || status?.reason === 'NodeLost'
}

/** Whether its node was found not to be ready while the pod ran: then nothing answers for it, and in minutes it is evicted. */
export function isNodeUnready({ status }: Pod): boolean {
  const runs = status?.containerStatuses?.some(({ state }) => state?.running !== undefined) === true
  return runs && status?.conditions?.some(({ type, status }) => type === 'Ready' && status === 'False') === true
}

/** Whether memory ran out, though the exit status may say otherwise. */
export function outOfMemory(pod: Pod): boolean {
  return pod.status?.containerStatuses?.some(({ state }) => state?.terminated?.reason === 'OOMKilled') === true
}

function isOver({ status }: Pod): boolean {
  return status?.phase === 'Failed' || status?.phase === 'Succeeded'
}
