/** Freezes and thaws all processes of a local sandbox: its supervisors, what they started, and what runs as its user. */
import { readdir, rm, stat, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { isAlive, processState, readMark, turnFiles } from '../turn-record.ts'
import type { LocalSandbox } from './local-isolation.ts'
import { findMarked, findOfUser, findProcesses, signalProcess } from './local-processes.ts'

const pausedFile = (sandbox: LocalSandbox) => join(sandbox.dir, 'paused')

export async function isPaused(sandbox: LocalSandbox): Promise<boolean> {
  return (await stat(pausedFile(sandbox)).catch(() => null)) !== null
}

/** Stops all, again and again until none is found that goes on: one that forks meanwhile is met the next time. */
export async function pauseSandbox(sandbox: LocalSandbox): Promise<void> {
  await writeFile(pausedFile(sandbox), '', { mode: 0o600 })
  for (let tries = 0; tries < 200; tries++) {
    const going: number[] = []
    for (const pid of await processesOf(sandbox))
      if (!/[TtZX]/.test((await processState(pid))?.state ?? 'X')) going.push(pid)
    if (going.length === 0) return
    for (const pid of going) signalProcess(pid, 'SIGSTOP')
    await sleep(10)
  }
}

export async function resumeSandbox(sandbox: LocalSandbox): Promise<void> {
  for (const pid of await processesOf(sandbox)) signalProcess(pid, 'SIGCONT')
  await rm(pausedFile(sandbox), { force: true })
}

/** Whether a supervisor of a run was stopped by somebody else than `pauseSandbox`: its run ends at no limit then. */
export async function hasStoppedSupervisor(sandbox: LocalSandbox): Promise<boolean> {
  for (const key of await readdir(join(sandbox.dir, 'turns')).catch(() => [])) {
    const mark = await readMark(turnFiles(join(sandbox.dir, 'turns', key)))
    if (mark !== null && (await isAlive(mark)) && /[Tt]/.test((await processState(mark.pid))?.state ?? '')) return true
  }
  return false
}

async function processesOf(sandbox: LocalSandbox): Promise<number[]> {
  const roots: number[] = []
  for (const key of await readdir(join(sandbox.dir, 'turns')).catch(() => [])) {
    const mark = await readMark(turnFiles(join(sandbox.dir, 'turns', key)))
    if (mark !== null && (await isAlive(mark))) roots.push(mark.pid)
  }
  const own =
    sandbox.uid !== null
      ? await findOfUser(sandbox.uid)
      : sandbox.isolation === 'bubblewrap'
        ? []
        : await findMarked(`HANGAR_SANDBOX=${sandbox.id}`)
  return [...new Set([...(await withDescendants(roots)), ...own])]
}

/** What left its parent inside a pid namespace is a child of that namespace's first process, so nothing falls out of the tree. */
async function withDescendants(roots: readonly number[]): Promise<number[]> {
  const parents = new Map<number, number>()
  await findProcesses(async (pid) => {
    const found = await processState(pid)
    if (found !== null) parents.set(pid, found.parent)
    return false
  })
  const tree = new Set(roots)
  for (let before = -1; before !== tree.size; ) {
    before = tree.size
    for (const [pid, parent] of parents) if (tree.has(parent)) tree.add(pid)
  }
  return [...tree]
}
