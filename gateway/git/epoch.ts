/** The store's epoch: each server that opens the store raises it, and one that finds another's there writes no more. */
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { errors } from '../../domain/errors.ts'
import { type Oid, type RefName, ZERO_OID } from '../../domain/names.ts'
import type { Repository } from './repository.ts'

const EPOCH_REF = 'refs/hangar/meta/epoch' as RefName

export interface Epoch {
  readonly number: number
  /** Throws `store_unusable` when another server has opened the store since. Asked before each move of a ref. */
  check(): Promise<void>
}

/**
 * Takes the store over. The lock keeps a second server of this machine out; this keeps one out that does not know of the other: thawed,
 * or on another machine that shares the disk.
 */
export async function raiseEpoch(server: Repository, now: number, onLost: () => void): Promise<Epoch> {
  const before = await server.refs.read(EPOCH_REF)
  const number = (before === null ? 0 : await numberOf(server, before)) + 1
  const record = { epoch: number, pid: process.pid, since: new Date(now).toISOString() }
  const mine = await server.objects.writeBlob(Buffer.from(`${JSON.stringify(record)}\n`))
  const raised = await server.refs.transact([{ ref: EPOCH_REF, old: before ?? ZERO_OID, new: mine }])
  if (!raised.ok)
    throw errors.storeUnusable(
      'another server opens this store at the same time; start this one again when it has gone',
    )
  let lost = false
  return {
    number,
    check: async () => {
      if (!lost && (await current(server)) === mine) return
      if (!lost) onLost()
      lost = true
      throw errors.storeUnusable(
        `another server has taken this store over since (this one had epoch ${number}); this one writes no more: stop it`,
      )
    },
  }
}

/** A loose ref is newer than a packed one; the file is read itself, since another process may have written it. */
async function current(server: Repository): Promise<Oid | null> {
  const loose = await readFile(join(server.dir, EPOCH_REF), 'latin1').catch(() => null)
  return loose === null ? server.refs.read(EPOCH_REF) : (loose.trim() as Oid)
}

async function numberOf(server: Repository, oid: Oid): Promise<number> {
  try {
    const { epoch } = JSON.parse((await server.objects.read(oid))?.body.toString('utf8') ?? '') as { epoch?: unknown }
    return typeof epoch === 'number' && Number.isSafeInteger(epoch) ? epoch : 0
  } catch {
    return 0
  }
}
