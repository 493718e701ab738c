/** The MCP sessions there are: found by id and token, taken up again after a restart, and bounded in number, age and idle time. */
import { AjvJsonSchemaValidator } from '@modelcontextprotocol/sdk/validation/ajv'
import type { TokenCaller } from '../../domain/grant.ts'
import type { Clock, Log, Random } from '../../domain/ports.ts'
import type { Index, McpSessionRecord } from '../../gateway/state/index.ts'
import type { McpFeatures } from './features.ts'
import { RPC, RpcError } from './rpc.ts'
import { McpSession } from './session.ts'

export interface McpLimits {
  /** Sessions of one token, and in all; past it the one that was idle longest is forgotten. */
  readonly maxSessionsPerToken: number
  readonly maxSessions: number
  /** After this without a request or an open stream a session leaves the memory; it is taken up again when its client comes back. */
  readonly idleMs: number
  /** After this its record goes as well. */
  readonly keptMs: number
  /** A comment goes out on each open stream this often. */
  readonly keepAliveMs: number
}

export const MCP_LIMITS: McpLimits = {
  maxSessionsPerToken: 256,
  maxSessions: 2_000,
  idleMs: 30 * 60_000,
  keptMs: 7 * 24 * 3_600_000,
  keepAliveMs: 15_000,
}

export interface McpSessionsDeps {
  readonly features: McpFeatures
  readonly index: Index
  readonly clock: Clock
  readonly random: Random
  readonly log: Log
  readonly limits: McpLimits
}

export interface McpSessions {
  /** A session for an `initialize` message; `opened` keeps it, or lets go of it when the message was refused. */
  open(caller: TokenCaller, initialize: unknown): Promise<{ session: McpSession; opened(ok: boolean): Promise<void> }>
  /** null when the id is unknown, or another token's. */
  find(caller: TokenCaller, id: string): Promise<McpSession | null>
  drop(id: string): Promise<void>
  /** Lets idle sessions leave the memory, and forgets those that are too old or whose token is dead. */
  sweep(isLive: (tokenId: string) => boolean): Promise<void>
  stats(): McpStats
  close(): Promise<void>
}

export interface McpStats {
  /** Sessions that are known, and those in memory. */
  readonly sessions: number
  readonly live: number
  readonly requests: number
  readonly streams: number
  readonly watched: number
}

interface Entry {
  readonly id: string
  readonly tokenId: string
  usedAt: number
  /** As the record has it. */
  savedAt: number
  live: Promise<McpSession> | null
  session: McpSession | null
}

/** A record tells the time of its last use to this exactness. */
const SAVE_MS = 3_600_000
/** An initialize message is some hundred bytes; what is larger is not kept for later. */
const MAX_INITIALIZE_BYTES = 16 * 1024
const SETTLE_MS = 2_000

/** Reads which sessions earlier processes left. */
export async function createMcpSessions(deps: McpSessionsDeps): Promise<McpSessions> {
  const { features, index, clock, random, limits, log } = deps
  const validator = new AjvJsonSchemaValidator()
  // The longest unused comes first: each use moves an entry to the end.
  const entries = new Map<string, Entry>()
  for (const [id, record] of (await index.mcpSessions.range()).sort(([, a], [, b]) => a.usedAt - b.usedAt)) {
    if (record.usedAt <= clock.now() - limits.keptMs) await index.mcpSessions.del(id)
    else
      entries.set(id, {
        id,
        tokenId: record.tokenId,
        usedAt: record.usedAt,
        savedAt: record.usedAt,
        live: null,
        session: null,
      })
  }

  const begin = (id: string): Promise<McpSession> =>
    McpSession.begin({
      id,
      features,
      validator,
      keepAliveMs: limits.keepAliveMs,
      watching: (watched) => save(id, (record) => ({ ...record, watched })),
      // What the SDK reports here is mostly an answer to a client that is gone.
      trouble: (error) => log.info({ session: id.slice(0, 6), error: error.message }, 'mcp'),
    })

  const save = async (id: string, change: (record: McpSessionRecord) => McpSessionRecord): Promise<void> => {
    const record = await index.mcpSessions.get(id)
    if (record !== null && entries.has(id)) await index.mcpSessions.put(id, change(record))
  }

  const touch = (entry: Entry): void => {
    entry.usedAt = clock.now()
    entries.delete(entry.id)
    entries.set(entry.id, entry)
    if (entry.usedAt - entry.savedAt < SAVE_MS) return
    entry.savedAt = entry.usedAt
    void save(entry.id, (record) => ({ ...record, usedAt: entry.usedAt }))
  }

  const unload = async (entry: Entry): Promise<void> => {
    const { live } = entry
    entry.live = null
    entry.session = null
    await live?.then((session) => session.close()).catch(() => {})
  }

  const drop = async (id: string): Promise<void> => {
    const entry = entries.get(id)
    if (entry === undefined) return
    entries.delete(id)
    await Promise.all([unload(entry), index.mcpSessions.del(id)])
  }

  const makeRoom = async (caller: TokenCaller): Promise<void> => {
    for (;;) {
      const own = [...entries.values()].filter(({ tokenId }) => tokenId === caller.id)
      const from =
        own.length >= limits.maxSessionsPerToken
          ? own
          : entries.size >= limits.maxSessions
            ? [...entries.values()]
            : null
      if (from === null) return
      const idle = from.find((entry) => entry.live === null || entry.session?.busy === false)
      if (idle === undefined)
        throw new RpcError(
          RPC.transport,
          `all ${from.length} MCP sessions that there may be are at work; end one (DELETE) or try again`,
        )
      await drop(idle.id)
    }
  }

  const revive = async (entry: Entry, caller: TokenCaller): Promise<McpSession> => {
    const record = await index.mcpSessions.get(entry.id)
    if (record === null) throw new RpcError(RPC.sessionNotFound, 'Session not found')
    const session = await begin(entry.id)
    await session.resume(record.initialize, caller, record.watched)
    return session
  }

  return {
    open: async (caller, initialize) => {
      await makeRoom(caller)
      const id = Buffer.from(random.bytes(24)).toString('base64url')
      const now = clock.now()
      const live = begin(id)
      // In its place at once: others that open beside it count it.
      const entry: Entry = { id, tokenId: caller.id, usedAt: now, savedAt: now, live, session: null }
      entries.set(id, entry)
      const session = await live
      entry.session = session
      const keep = JSON.stringify(initialize).length <= MAX_INITIALIZE_BYTES
      if (keep) await index.mcpSessions.put(id, { tokenId: caller.id, initialize, watched: [], usedAt: now })
      return { session, opened: async (ok) => void (ok || (await drop(id))) }
    },
    find: async (caller, id) => {
      const entry = entries.get(id)
      if (entry === undefined || entry.tokenId !== caller.id) return null
      touch(entry)
      if (entry.live === null) {
        const live = revive(entry, caller)
        entry.live = live
        live.then(
          (session) => {
            if (entry.live === live) entry.session = session
          },
          () => void drop(id),
        )
      }
      return entry.live.catch(() => null)
    },
    drop,
    sweep: async (isLive) => {
      const now = clock.now()
      for (const entry of [...entries.values()]) {
        if (!isLive(entry.tokenId)) await drop(entry.id)
        else if (entry.session?.busy === true) touch(entry)
        else if (entry.usedAt <= now - limits.keptMs) await drop(entry.id)
        else if (entry.usedAt <= now - limits.idleMs) await unload(entry)
      }
    },
    stats: () => {
      const live = [...entries.values()].map(({ session }) => session).filter((session) => session !== null)
      const sum = (of: (activity: McpSession['activity']) => number) =>
        live.reduce((total, session) => total + of(session.activity), 0)
      return {
        sessions: entries.size,
        live: live.length,
        requests: sum(({ requests }) => requests),
        streams: sum(({ streams }) => streams),
        watched: sum(({ watched }) => watched),
      }
    },
    close: async () => {
      await Promise.all(
        [...entries.values()].map(async (entry) => {
          await entry.session?.settle(SETTLE_MS)
          await unload(entry)
        }),
      )
    },
  }
}
