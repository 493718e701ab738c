/** The agent's result against the message's JSON Schema: an untrusted schema runs in a worker that is ended when it takes too long. */
import { once } from 'node:events'
import { isMainThread, parentPort, Worker } from 'node:worker_threads'
import { Ajv, type ErrorObject } from 'ajv'
import { Ajv2020 } from 'ajv/dist/2020.js'
import formats from 'ajv-formats'
import { errors, messageOf } from '../domain/errors.ts'
import { DEFAULT_LIMITS } from '../domain/limits.ts'
import { createFairQueue } from './fair-queue.ts'

/** What became of a result. */
export type ResultOutcome =
  | { readonly kind: 'none' }
  | { readonly kind: 'valid'; readonly value: unknown }
  | { readonly kind: 'invalid'; readonly reason: string }

export interface ResultChecker {
  /** A result's text against a schema (null: any JSON). Without a text there is no result, which a schema makes invalid. */
  check(schema: unknown, text: string | null, asker?: string): Promise<ResultOutcome>
  /**
   * Why the schema itself cannot be used; null when it can. Askers (a repo, say) take turns, so that one with many slow schemas delays its own.
   * Throws `too_large` past 256 KB, and `busy` when the asker has too many waiting.
   */
  refuseSchema(schema: unknown, asker?: string): Promise<string | null>
  close(): Promise<void>
}

export interface ResultCheckerOptions {
  readonly timeLimitMs?: number
  readonly workers?: number
  /** Schemas of one asker that may wait. */
  readonly maxWaiting?: number
}

/** Deeper JSON than this is refused before it reaches the worker: structured cloning recurses. */
const MAX_DEPTH = 200
const TIME_LIMIT_MS = 5_000
const WORKERS = 2
const MAX_WAITING = 20

interface Question {
  readonly schema: string
  readonly text: string | null
}

/** A few warm workers, each replaced when a schema makes it hang. */
export function createResultChecker(options: ResultCheckerOptions = {}): ResultChecker {
  const timeLimitMs = options.timeLimitMs ?? TIME_LIMIT_MS
  const idle: Worker[] = []
  const running = new Set<Worker>()
  const queue = createFairQueue(options.workers ?? WORKERS)
  const maxWaiting = options.maxWaiting ?? MAX_WAITING
  let closed = false

  const hire = async (): Promise<Worker> => {
    for (let worker = idle.pop(); worker !== undefined; worker = idle.pop()) if (running.has(worker)) return worker
    const worker = await startWorker()
    running.add(worker)
    // Without a listener the error of a worker that nobody asks would end the server.
    worker.on('error', () => {}).once('exit', () => running.delete(worker))
    return worker
  }
  const askWorker = async (question: Question): Promise<string | null> => {
    if (closed) return 'the output_schema could not be checked: the server ends'
    const worker = await hire().catch((error: unknown) => messageOf(error))
    if (typeof worker === 'string') return `the output_schema could not be checked: ${worker}`
    try {
      const answer = await answerOf(worker, question, timeLimitMs)
      if (!closed) idle.push(worker)
      return answer
    } catch (error) {
      await worker.terminate().catch(() => {})
      return messageOf(error)
    }
  }
  const ask = (asker: string, question: Question) => queue.run(asker, () => askWorker(question))

  return {
    check: async (schema, text, asker = '') => {
      if (text === null)
        return schema === null ? { kind: 'none' } : { kind: 'invalid', reason: 'out/result.json is missing' }
      const parsed = parseJson(text)
      if (!parsed.ok) return { kind: 'invalid', reason: `out/result.json: ${parsed.reason}` }
      const reason = schema === null ? null : await ask(asker, { schema: JSON.stringify(schema), text })
      return reason === null ? { kind: 'valid', value: parsed.value } : { kind: 'invalid', reason }
    },
    refuseSchema: async (schema, asker = '') => {
      const tooDeep = `output_schema: nested deeper than ${MAX_DEPTH} levels`
      const text = textOf(schema)
      if (text === null) return tooDeep
      const bytes = Buffer.byteLength(text)
      if (bytes > DEFAULT_LIMITS.maxSchemaBytes)
        throw errors.tooLarge(
          `output_schema: a schema may have ${DEFAULT_LIMITS.maxSchemaBytes} bytes as JSON, this has ${bytes}; simplify it`,
        )
      if (isDeeper(schema, MAX_DEPTH)) return tooDeep
      if (queue.waiting(asker) >= maxWaiting)
        throw errors.busy('as many schemas of this repo wait for their check as may; try again when they are through')
      return ask(asker, { schema: text, text: null })
    },
    close: async () => {
      closed = true
      await Promise.all([...running].map((worker) => worker.terminate()))
    },
  }
}

/** Null when it is nested so deeply that the runtime gives up. */
function textOf(value: unknown): string | null {
  try {
    return JSON.stringify(value)
  } catch {
    return null
  }
}

/** Whether a value of JSON is nested more deeply; without recursion, which a hostile value would exhaust. */
function isDeeper(value: unknown, levels: number): boolean {
  let level: unknown[] = [value]
  for (let depth = 0; level.length > 0; depth++) {
    if (depth > levels) return true
    level = level.flatMap((item) => (typeof item === 'object' && item !== null ? Object.values(item) : []))
  }
  return false
}

/** JSON of bounded depth. */
function parseJson(text: string): { ok: true; value: unknown } | { ok: false; reason: string } {
  let depth = 0
  let inString = false
  for (let at = 0; at < text.length; at++) {
    const character = text[at]
    if (inString) {
      if (character === '\\') at++
      else if (character === '"') inString = false
    } else if (character === '"') inString = true
    else if (character === '{' || character === '[') {
      if (++depth > MAX_DEPTH) return { ok: false, reason: `nested deeper than ${MAX_DEPTH} levels` }
    } else if (character === '}' || character === ']') depth--
  }
  try {
    return { ok: true, value: JSON.parse(text) as unknown }
  } catch (error) {
    return { ok: false, reason: `not JSON: ${messageOf(error)}` }
  }
}

/** A worker that has loaded its code: a schema's time does not count the start of a busy machine. It sees nothing of the server's environment. */
async function startWorker(): Promise<Worker> {
  const worker = new Worker(new URL(import.meta.url), {
    env: {},
    resourceLimits: { maxOldGenerationSizeMb: 256, maxYoungGenerationSizeMb: 32, stackSizeMb: 4 },
  })
  worker.unref()
  await once(worker, 'message')
  return worker
}

function answerOf(worker: Worker, question: Question, timeLimitMs: number): Promise<string | null> {
  return new Promise((resolve, reject) => {
    const answered = (answer: string | null) => settle(() => resolve(answer))
    const failed = (error: unknown) =>
      settle(() => reject(new Error(`the output_schema could not be checked: ${messageOf(error)}`)))
    const ended = () => failed('its worker ended')
    const settle = (act: () => void) => {
      clearTimeout(timer)
      worker.off('message', answered).off('error', failed).off('exit', ended)
      act()
    }
    const timer = setTimeout(() => failed(`it took longer than ${timeLimitMs / 1000} s; simplify it`), timeLimitMs)
    worker.on('message', answered).on('error', failed).on('exit', ended)
    worker.postMessage(question)
  })
}

if (!isMainThread && parentPort !== null) {
  const port = parentPort
  port.postMessage('ready')
  port.on('message', (question: Question) => port.postMessage(answer(question)))
}

const OPTIONS = { strict: false, allErrors: false, logger: false } as const

/** In the worker: null when all is well, else the sentence. */
function answer({ schema, text }: Question): string | null {
  let validate: ReturnType<Ajv['compile']>
  try {
    const parsed = JSON.parse(schema) as { $schema?: string } | boolean
    const dialect: unknown = typeof parsed === 'object' ? parsed.$schema : undefined
    if (dialect !== undefined && !(typeof dialect === 'string' && DIALECTS.test(dialect)))
      return `output_schema cannot be used: $schema is ${JSON.stringify(dialect)?.slice(0, 200)}; use JSON Schema 2020-12 or draft-07`
    const draft07 = typeof dialect === 'string' && dialect.includes('draft-07')
    const ajv = draft07 ? new Ajv(OPTIONS) : new Ajv2020(OPTIONS)
    formats.default(ajv)
    validate = ajv.compile(parsed)
  } catch (error) {
    return `output_schema cannot be used: ${messageOf(error).slice(0, 1_000)}`
  }
  try {
    if (text === null || validate(JSON.parse(text))) return null
  } catch (error) {
    return `out/result.json could not be checked: ${messageOf(error).slice(0, 1_000)}`
  }
  return `out/result.json does not fit the schema${place(validate.errors?.[0])}`
}

const DIALECTS = /^https?:\/\/json-schema\.org\/(?:draft\/2020-12\/schema|draft-07\/schema)#?$/

function place(error: ErrorObject | undefined): string {
  if (error === undefined) return ''
  const at = error.instancePath === '' ? 'the value' : error.instancePath
  return `: ${at} ${error.message ?? 'is not valid'}`.slice(0, 1_000)
}
