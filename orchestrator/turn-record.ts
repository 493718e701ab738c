/** The on-disk contract of a running turn, which `hangar-agent supervise` writes and any later server reads. */
import { open, readFile, stat } from 'node:fs/promises'
import { join } from 'node:path'
import type { TurnCursor, TurnProcess } from '../domain/sandbox.ts'

/** The files of one run, in its own directory, outside the agent's reach. */
export interface TurnFiles {
  readonly dir: string
  /** What the run was started with: `{"grace_ms"}`. */
  readonly spec: string
  readonly stdin: string
  /** Made once, by the supervisor that runs it. */
  readonly claimed: string
  /** `PID STARTTIME BOOT_ID` of the supervisor. */
  readonly pid: string
  readonly out: string
  readonly err: string
  /** There when somebody has asked for its end. */
  readonly stop: string
  /** `{"code","timed_out","ended_at"}`, written last, when nothing of the run is left. */
  readonly exit: string
}

/** Where the files of a run are. */
export function turnFiles(dir: string): TurnFiles {
  const file = (name: string) => join(dir, name)
  return {
    dir,
    spec: file('spec.json'),
    stdin: file('stdin'),
    claimed: file('claimed'),
    pid: file('pid'),
    out: file('out.log'),
    err: file('err.log'),
    stop: file('stop'),
    exit: file('exit.json'),
  }
}

/** A process that cannot be taken for a later one of the same number. */
export interface ProcessMark {
  readonly pid: number
  /** Clock ticks since boot, field 22 of /proc/PID/stat. */
  readonly startTime: string
  readonly bootId: string
}

/** The supervisor's mark; null while it has not been written. */
export async function readMark(files: TurnFiles): Promise<ProcessMark | null> {
  const text = await readFile(files.pid, 'utf8').catch(() => null)
  const [pid, startTime, bootId] = (text ?? '').trim().split(' ')
  if (pid === undefined || startTime === undefined || !/^\d+$/.test(pid)) return null
  return { pid: Number(pid), startTime, bootId: bootId ?? '' }
}

/** Whether the very process lives: same boot, same start, and no zombie. */
export async function isAlive(mark: ProcessMark): Promise<boolean> {
  const bootId = (await readFile('/proc/sys/kernel/random/boot_id', 'utf8').catch(() => '')).trim()
  if (bootId !== mark.bootId) return false
  const found = await processState(mark.pid)
  return found !== null && found.startTime === mark.startTime && !/[ZX]/.test(found.state)
}

/** State letter, parent and start time of a process; null when it is gone. The name in /proc/PID/stat may hold anything, so fields count from its last `)`. */
export async function processState(
  pid: number,
): Promise<{ readonly state: string; readonly parent: number; readonly startTime: string } | null> {
  const text = await readFile(`/proc/${pid}/stat`, 'latin1').catch(() => null)
  if (text === null) return null
  const fields = text.slice(text.lastIndexOf(')') + 2).split(' ')
  return { state: fields[0] ?? 'X', parent: Number(fields[1]), startTime: fields[19] ?? '' }
}

const CLAIM_WITHOUT_PID_MS = 3_000

/**
 * Where the run stands. `lost` is said only of a run that was claimed, has no exit record and no living supervisor; the exit record
 * is looked at once more after the supervisor was found gone, since it is written right before.
 */
export async function readTurnProcess(files: TurnFiles, now: number): Promise<TurnProcess> {
  const ended = await readExit(files)
  if (ended !== null) return ended
  const claim = await stat(files.claimed).catch(() => null)
  if (claim === null) return { state: 'unknown' }
  const mark = await readMark(files)
  if (mark === null && now - claim.mtimeMs < CLAIM_WITHOUT_PID_MS) return { state: 'running' }
  if (mark !== null && (await isAlive(mark))) return { state: 'running' }
  return (await readExit(files)) ?? { state: 'lost', reason: 'the process that supervised the run is gone' }
}

async function readExit(files: TurnFiles): Promise<TurnProcess | null> {
  const text = await readFile(files.exit, 'utf8').catch(() => null)
  return text === null ? null : parseExit(text)
}

/** The exit record as its text; `lost` when it cannot be read. */
export function parseExit(text: string): TurnProcess {
  try {
    const record = JSON.parse(text) as {
      code: number
      timed_out: boolean
      ended_at: number
      oom?: boolean
      disk_full?: boolean
    }
    const { code, timed_out: timedOut, ended_at: endedAt, oom, disk_full: diskFull } = record
    if (!Number.isInteger(code)) throw new Error('no exit status')
    return {
      state: 'exited',
      exitCode: code,
      timedOut,
      endedAt,
      ...(oom === true ? { oom } : {}),
      ...(diskFull === true ? { diskFull } : {}),
    }
  } catch {
    return { state: 'lost', reason: 'the exit record of the run cannot be read; the disk may be full' }
  }
}

/** Bytes of both logs from the cursor on, `maxBytes` of each at most, and whether that is all there is now. */
export async function readLogs(
  files: TurnFiles,
  cursor: TurnCursor,
  maxBytes: number,
): Promise<{ out: Buffer; err: Buffer; next: TurnCursor; drained: boolean }> {
  const out = await readFrom(files.out, cursor.out, maxBytes)
  const err = await readFrom(files.err, cursor.err, maxBytes)
  const next = { out: cursor.out + out.length, err: cursor.err + err.length }
  return { out, err, next, drained: out.length < maxBytes && err.length < maxBytes }
}

async function readFrom(path: string, offset: number, maxBytes: number): Promise<Buffer> {
  const file = await open(path, 'r').catch(() => null)
  if (file === null) return Buffer.alloc(0)
  try {
    const { size } = await file.stat()
    const length = Math.max(0, Math.min(maxBytes, size - offset))
    if (length === 0) return Buffer.alloc(0)
    const { bytesRead, buffer } = await file.read(Buffer.alloc(length), 0, length, offset)
    return buffer.subarray(0, bytesRead)
  } finally {
    await file.close()
  }
}
