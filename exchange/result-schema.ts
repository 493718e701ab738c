/** The agent's result against the message's JSON Schema: an untrusted schema runs in a worker that is ended when it takes too long. */
import { once } from 'node:events'
import { isMainThread, parentPort, Worker } from 'node:worker_threads'
import { Ajv, type ErrorObject } from 'ajv'
import { Ajv2020 } from 'ajv/dist/2020.js'
import formats from 'ajv-formats'
import { messageOf } from '../domain/errors.ts'

/** What became of a result. */
export type ResultOutcome =
  | { readonly kind: 'none' }
  | { readonly kind: 'valid'; readonly value: unknown }
  | { readonly kind: 'invalid'; readonly reason: string }

export interface ResultChecker {
  /** A result's text against a schema (null: any JSON). Without a text there is no result, which a schema makes invalid. */
  check(schema: unknown, text: string | null): Promise<ResultOutcome>
  /** Why the schema itself cannot be used; null when it can. */
  refuseSchema(schema: unknown): Promise<string | null>
  close(): Promise<void>
}

/** Deeper JSON than this is refused before it reaches the worker: structured cloning recurses. */
const MAX_DEPTH = 200
const TIME_LIMIT_MS = 5_000

interface Question {
  readonly schema: string
  readonly text: string | null
}

/** One warm worker, replaced when a schema makes it hang; questions are asked one after another. */
export function createResultChecker(): ResultChecker {
  let worker: Promise<Worker> | null = null
  let last: Promise<unknown> = Promise.resolve()

  const ask = (question: Question): Promise<string | null> => {
    const answer = last.then(() => askWorker(question))
    last = answer.catch(() => {})
    return answer
  }
  const askWorker = async (question: Question): Promise<string | null> => {
    worker ??= startWorker()
    const asked = worker
    try {
      return await answerOf(await asked, question)
    } catch (error) {
      worker = null
      await asked.then((hanging) => hanging.terminate()).catch(() => {})
      return messageOf(error)
    }
  }
  return {
    check: async (schema, text) => {
      if (text === null)
        return schema === null ? { kind: 'none' } : { kind: 'invalid', reason: 'out/result.json is missing' }
      const parsed = parseJson(text)
      if (!parsed.ok) return { kind: 'invalid', reason: `out/result.json: ${parsed.reason}` }
      const reason = schema === null ? null : await ask({ schema: JSON.stringify(schema), text })
      return reason === null ? { kind: 'valid', value: parsed.value } : { kind: 'invalid', reason }
    },
    refuseSchema: async (schema) => {
      const parsed = parseJson(JSON.stringify(schema))
      return parsed.ok ? ask({ schema: JSON.stringify(schema), text: null }) : `output_schema: ${parsed.reason}`
    },
    close: async () => {
      const running = worker
      worker = null
      await (await running)?.terminate()
    },
  }
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

/** A worker that has loaded its code: a schema's time does not count the start of a busy machine. */
async function startWorker(): Promise<Worker> {
  const worker = new Worker(new URL(import.meta.url), { resourceLimits: { maxOldGenerationSizeMb: 256 } })
  worker.unref()
  await once(worker, 'message')
  return worker
}

function answerOf(worker: Worker, question: Question): Promise<string | null> {
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
    const timer = setTimeout(() => failed(`it took longer than ${TIME_LIMIT_MS / 1000} s; simplify it`), TIME_LIMIT_MS)
    worker.on('message', answered).on('error', failed).on('exit', ended)
    worker.postMessage(question)
  })
}

if (!isMainThread && parentPort !== null) {
  const port = parentPort
  port.postMessage('ready')
  port.on('message', (question: Question) => port.postMessage(answer(question)))
}

/** In the worker: null when all is well, else the sentence. */
function answer({ schema, text }: Question): string | null {
  let validate: ReturnType<Ajv['compile']>
  try {
    const parsed = JSON.parse(schema) as { $schema?: unknown }
    const draft07 = typeof parsed.$schema === 'string' && parsed.$schema.includes('draft-07')
    const ajv = draft07
      ? new Ajv({ strict: false, allErrors: false })
      : new Ajv2020({ strict: false, allErrors: false })
    formats.default(ajv)
    validate = ajv.compile(parsed as object)
  } catch (error) {
    return `output_schema cannot be used: ${messageOf(error)}`
  }
  if (text === null || validate(JSON.parse(text))) return null
  return `out/result.json does not fit the schema${place(validate.errors?.[0])}`
}

function place(error: ErrorObject | undefined): string {
  return error === undefined
    ? ''
    : `: ${error.instancePath === '' ? 'the value' : error.instancePath} ${error.message ?? 'is not valid'}`
}
