/** The metrics of domain/metrics.ts as Prometheus reads them, with those of the process itself. */
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import type { IncomingMessage, ServerResponse } from 'node:http'
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client'
import { METRICS, type Metrics } from '../domain/metrics.ts'
import { GIT_ENDED, GIT_STARTED } from '../gateway/git/process.ts'

export interface ServedMetrics extends Metrics {
  /** In Prometheus's text format. */
  text(): Promise<{ contentType: string; body: string }>
  /** Counts the request once its answer has ended. */
  request(req: IncomingMessage, res: ServerResponse): void
  close(): void
}

const METHODS = new Set(['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS'])

export function createMetrics(): ServedMetrics {
  const registry = new Registry()
  const registers = [registry]
  collectDefaultMetrics({ register: registry })
  const counters = new Map<string, Counter<string>>()
  const histograms = new Map<string, Histogram<string>>()
  for (const [name, metric] of Object.entries(METRICS)) {
    const shape = { name, help: metric.help, labelNames: Object.keys(metric.labels), registers }
    if (metric.type === 'counter') counters.set(name, new Counter(shape))
    if (metric.type === 'histogram') histograms.set(name, new Histogram({ ...shape, buckets: [...metric.buckets] }))
  }
  const metrics: Metrics = {
    count: (name, labels, by = 1) => counters.get(name)?.inc(labels, by),
    observe: (name, labels, seconds) => histograms.get(name)?.observe(labels, seconds),
    gauge(name, read) {
      const { help, labels } = METRICS[name]
      new Gauge({
        name,
        help,
        labelNames: Object.keys(labels),
        registers,
        collect() {
          for (const { labels, value } of read()) this.set(labels as Record<string, string>, value)
        },
      })
    },
  }

  let processes = 0
  const started = (message: unknown) => {
    processes++
    metrics.count('hangar_git_processes_total', { command: (message as { command: string }).command })
  }
  const ended = () => void processes--
  subscribe(GIT_STARTED, started)
  subscribe(GIT_ENDED, ended)
  metrics.gauge('hangar_git_processes', () => [{ labels: {}, value: Math.max(0, processes) }])

  return {
    ...metrics,
    request(req, res) {
      const begun = performance.now()
      const surface = surfaceOf(req.url ?? '')
      res.once('close', () => {
        const method = METHODS.has(req.method ?? '') ? (req.method ?? '') : 'other'
        const status = res.writableFinished ? String(res.statusCode) : 'broken off'
        metrics.count('hangar_http_requests_total', { surface, method, status })
        metrics.observe('hangar_http_request_seconds', { surface }, (performance.now() - begun) / 1_000)
      })
    },
    text: async () => ({ contentType: registry.contentType, body: await registry.metrics() }),
    close() {
      unsubscribe(GIT_STARTED, started)
      unsubscribe(GIT_ENDED, ended)
      registry.clear()
    },
  }
}

function surfaceOf(url: string): string {
  const [, first = ''] = /^\/(git|api|mcp)(?:[/?]|$)/.exec(url) ?? []
  return first === '' ? 'other' : first
}
