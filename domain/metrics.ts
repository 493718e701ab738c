/** Every metric of hangar, once: counted through `Metrics`, served at /metrics, and documented in docs/metrics.md from this table. */

interface Metric {
  readonly type: 'counter' | 'gauge' | 'histogram'
  /** With all values that each label can have, or what they are. */
  readonly labels: Readonly<Record<string, string>>
  readonly help: string
  /** Seconds, of a histogram. */
  readonly buckets?: readonly number[]
}

const SECONDS = [0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60, 300, 1_800]
const SERVICE = '`upload-pack` (fetches) or `receive-pack` (pushes)'

export const METRICS = {
  hangar_http_requests_total: {
    type: 'counter',
    labels: { surface: '`git`, `api`, `mcp` or `other`', method: 'as sent, of the usual ones', status: 'the answer' },
    help: 'Requests that were answered, or broken off.',
  },
  hangar_http_request_seconds: {
    type: 'histogram',
    labels: { surface: '`git`, `api`, `mcp` or `other`' },
    help: 'From a request to the end of its answer; streams and waits with it.',
    buckets: SECONDS,
  },
  hangar_git_requests_total: {
    type: 'counter',
    labels: { service: SERVICE, kind: '`advertisement` or `rpc`', protocol: '`0`, `1`, `2`' },
    help: 'Requests of git clients that were let in.',
  },
  hangar_git_seconds: {
    type: 'histogram',
    labels: { service: SERVICE, kind: '`advertisement` or `rpc`' },
    help: 'Time that serving them took.',
    buckets: SECONDS,
  },
  hangar_git_received_bytes_total: {
    type: 'counter',
    labels: { service: SERVICE },
    help: 'Bytes that came over the connections of git clients, with their headers.',
  },
  hangar_git_sent_bytes_total: {
    type: 'counter',
    labels: { service: SERVICE },
    help: 'Bytes that went out over them.',
  },
  hangar_push_refs_total: {
    type: 'counter',
    labels: { decision: '`accepted` or `refused`', rule: 'the id of the rule that refused; empty when accepted' },
    help: 'Refs that pushes asked to move.',
  },
  hangar_git_processes_total: {
    type: 'counter',
    labels: { command: "git's own name of it" },
    help: 'git processes that were started.',
  },
  hangar_git_processes: { type: 'gauge', labels: {}, help: 'git processes that run.' },
  hangar_git_slots: {
    type: 'gauge',
    labels: { state: '`running` or `waiting`' },
    help: 'Fetches and pushes that run, and that wait for a slot.',
  },
  hangar_git_busy_total: { type: 'counter', labels: {}, help: 'Fetches and pushes that were told to come back (503).' },
  hangar_cache_requests_total: {
    type: 'counter',
    labels: {
      cache: '`refs` (what a caller sees), `answers` (advertisements and ls-refs) or `packs` (answers to clones)',
      result: '`hit` or `miss`',
    },
    help: 'Look-ups in the caches of the gateway.',
  },
  hangar_pack_cache_bytes: {
    type: 'gauge',
    labels: {},
    help: 'Bytes that kept answers to clones take, and those on their way are thought to.',
  },
  hangar_turns_total: {
    type: 'counter',
    labels: { outcome: '`exited`, `failed`, `needs_input`, `over_budget`, `timed_out` or `cancelled`' },
    help: 'Turns that ended.',
  },
  hangar_turn_seconds: {
    type: 'histogram',
    labels: { outcome: 'as above' },
    help: 'From the start of a turn to its end.',
    buckets: [1, 5, 15, 60, 180, 600, 1_800, 3_600, 10_800],
  },
  hangar_turns: {
    type: 'gauge',
    labels: { state: '`running` or `queued`' },
    help: 'Turns that run, and that wait for a place (`queue.max_running`).',
  },
} as const satisfies Readonly<Record<string, Metric>>

export type MetricName = keyof typeof METRICS

type NamesOf<T extends Metric['type']> = {
  [N in MetricName]: (typeof METRICS)[N]['type'] extends T ? N : never
}[MetricName]
type LabelsOf<N extends MetricName> = Readonly<Record<keyof (typeof METRICS)[N]['labels'], string>>

/** What counts; how it is kept and served is the composition root's. */
export interface Metrics {
  count<N extends NamesOf<'counter'>>(name: N, labels: LabelsOf<N>, by?: number): void
  /** Seconds. */
  observe<N extends NamesOf<'histogram'>>(name: N, labels: LabelsOf<N>, seconds: number): void
  /** Asked whenever metrics are read. */
  gauge<N extends NamesOf<'gauge'>>(name: N, read: () => readonly { labels: LabelsOf<N>; value: number }[]): void
}

/** Counts nothing. */
export const NO_METRICS: Metrics = { count: () => {}, observe: () => {}, gauge: () => {} }
