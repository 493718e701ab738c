/** The body of a POST: JSON, capped, and with a cap on how many large ones a token has in memory at once. */
import type { ServerResponse } from 'node:http'
import express, { type Request, type Response } from 'express'
import { messageOf } from '../../domain/errors.ts'
import { MB } from '../../domain/limits.ts'
import { RPC } from './rpc.ts'

/** A refusal before any session is reached, with its HTTP status. */
export class HttpRefusal extends Error {
  readonly status: number
  readonly code: number

  constructor(status: number, code: number, message: string) {
    super(message)
    this.name = 'HttpRefusal'
    this.status = status
    this.code = code
  }
}

export interface BodyReader {
  /** Throws `HttpRefusal`. What a large body takes is given back when the response has closed. */
  read(req: Request, res: Response, tokenId: string): Promise<unknown>
}

export interface BodyLimits {
  readonly maxBytes: number
  readonly timeMs?: number
}

/** Bodies up to this are read at once, whatever else is going on. */
const SMALL_BYTES = MB
/** Large bodies of one token that are held at once; further ones wait unread. */
const LARGE_AT_ONCE = 2
const MOST_WAITING = 16
/** A body that takes longer is given up: it would keep its place from others. */
const BODY_MS = 5 * 60_000

export function createBodyReader({ maxBytes, timeMs = BODY_MS }: BodyLimits): BodyReader {
  const parse = express.json({ limit: maxBytes, strict: false })
  const slots = createSlots()
  return {
    read: async (req, res, tokenId) => {
      const length = Number(req.headers['content-length'] ?? Number.POSITIVE_INFINITY)
      // The parser would read it to its end before it says so.
      if (Number.isFinite(length) && length > maxBytes) throw tooLarge(maxBytes)
      if (length > SMALL_BYTES) await slots.take(tokenId, res)
      const late = new HttpRefusal(408, RPC.transport, `the body took longer than ${timeMs / 60_000} minutes`)
      let timer: NodeJS.Timeout | undefined
      await new Promise<void>((resolve, reject) => {
        timer = setTimeout(() => reject(late), timeMs)
        parse(req, res, (error?: unknown) => (error === undefined ? resolve() : reject(refusalOf(error, maxBytes))))
      }).finally(() => clearTimeout(timer))
      return req.body as unknown
    },
  }
}

function tooLarge(maxBytes: number): HttpRefusal {
  return new HttpRefusal(
    413,
    RPC.transport,
    `the body has more than ${Math.floor(maxBytes / MB)} MB; push big work with the CLI instead: hangar session new NAME --from-local`,
  )
}

function refusalOf(error: unknown, maxBytes: number): HttpRefusal {
  const { type, status } = error as { type?: string; status?: number }
  if (type === 'entity.too.large') return tooLarge(maxBytes)
  if (type === 'encoding.unsupported' || type === 'charset.unsupported')
    return new HttpRefusal(415, RPC.transport, messageOf(error))
  if (status !== undefined && status < 500)
    return new HttpRefusal(400, RPC.parse, `the body is not JSON: ${messageOf(error)}`)
  return new HttpRefusal(400, RPC.transport, 'the body could not be read')
}

interface Slots {
  take(tokenId: string, res: ServerResponse): Promise<void>
}

function createSlots(): Slots {
  const tokens = new Map<string, { held: number; readonly waiting: (() => void)[] }>()
  return {
    take: async (tokenId, res) => {
      const own = tokens.get(tokenId) ?? { held: 0, waiting: [] }
      tokens.set(tokenId, own)
      const release = () => {
        own.held -= 1
        own.waiting.shift()?.()
        if (own.held === 0 && own.waiting.length === 0) tokens.delete(tokenId)
      }
      const hold = () => {
        own.held += 1
        if (res.destroyed) release()
        else res.once('close', release)
      }
      if (own.held < LARGE_AT_ONCE) return hold()
      if (own.waiting.length >= MOST_WAITING)
        throw new HttpRefusal(
          503,
          RPC.transport,
          'too many large requests of this token are on their way; try again in a moment',
        )
      await new Promise<void>((resolve) => {
        own.waiting.push(() => {
          hold()
          resolve()
        })
      })
    },
  }
}
