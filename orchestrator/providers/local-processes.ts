/** Finds and ends the processes of a local sandbox on the host, by user or by a mark in their environment. */
import { spawn } from 'node:child_process'
import { readdir, readFile, stat } from 'node:fs/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import { processState } from '../turn-record.ts'
import { asUser, type LocalSandbox } from './local-isolation.ts'

/** Sends a signal; a process that is gone is no error. A negative number is a process group. */
export function signalProcess(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal)
  } catch {
    // Gone already.
  }
}

/** Living processes (no zombies) that the test holds for. */
export async function findProcesses(test: (pid: number) => Promise<boolean>): Promise<number[]> {
  const names = (await readdir('/proc')).filter((name) => /^\d+$/.test(name) && Number(name) !== process.pid)
  const found = await Promise.all(
    names.map(async (name) => {
      const pid = Number(name)
      if (!(await test(pid).catch(() => false))) return null
      const state = await processState(pid)
      return state === null || /[ZX]/.test(state.state) ? null : pid
    }),
  )
  return found.filter((pid) => pid !== null)
}

/** Processes whose first environment holds `NAME=VALUE` exactly. */
export function findMarked(entry: string): Promise<number[]> {
  const wanted = Buffer.from(`\0${entry}\0`)
  return findProcesses(async (pid) =>
    Buffer.concat([Buffer.of(0), await readFile(`/proc/${pid}/environ`)]).includes(wanted),
  )
}

/** Processes that run as a user. */
export function findOfUser(uid: number): Promise<number[]> {
  return findProcesses(async (pid) => (await stat(`/proc/${pid}`)).uid === uid)
}

/** Ends all that the finder finds, again and again until it finds nothing; gives up, false, after five seconds. */
export async function killFound(find: () => Promise<number[]>): Promise<boolean> {
  for (let tries = 0; tries < 200; tries++) {
    const pids = await find()
    if (pids.length === 0) return true
    for (const pid of pids) signalProcess(pid, 'SIGKILL')
    await sleep(25)
  }
  return false
}

/** Ends every process of a sandbox, whatever it did to hide. Resolves to whether all are gone. */
export async function killSandbox(sandbox: LocalSandbox): Promise<boolean> {
  const { uid } = sandbox
  if (uid !== null) {
    await killAllAs(uid)
    return killFound(() => findOfUser(uid))
  }
  return killFound(() => findMarked(`HANGAR_SANDBOX=${sandbox.id}`))
}

/** `kill -1` as that user: one step of the kernel, which nothing can fork away from. */
async function killAllAs(uid: number): Promise<void> {
  const [program = 'setpriv', ...args] = [...asUser(uid), 'sh', '-c', 'kill -KILL -1']
  const child = spawn(program, args, { stdio: 'ignore', env: { PATH: '/usr/sbin:/usr/bin:/sbin:/bin' } })
  await new Promise<void>((resolve) => {
    child.once('error', () => resolve())
    child.once('exit', () => resolve())
  })
}

/** The same as a shell script, for the supervisor, which outlives the server. */
export function reapScript(sandbox: LocalSandbox): string {
  const { uid, id } = sandbox
  if (uid !== null)
    return `for try in 1 2 3 4 5 6 7 8 9 10; do
  ${asUser(uid).join(' ')} sh -c 'kill -KILL -1' 2>/dev/null
  cat /proc/[0-9]*/status 2>/dev/null | awk '/^State:/ { state = $2 } /^Uid:/ && $2 == ${uid} && state != "Z" { found = 1 } END { exit !found }' || break
  sleep 0.05
done
`
  return `for try in 1 2 3 4 5 6 7 8 9 10; do
  found=$(grep -lzxF 'HANGAR_SANDBOX=${id}' /proc/[0-9]*/environ 2>/dev/null)
  [ -n "$found" ] || break
  for file in $found; do pid=\${file#/proc/}; kill -KILL "\${pid%/environ}" 2>/dev/null; done
  sleep 0.05
done
`
}
