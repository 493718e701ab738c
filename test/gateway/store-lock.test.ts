/** The store's lock: held by who lives, free when its holder has ended, however. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { lockStore } from '../../gateway/git/store-lock.ts'
import { temporaryDirectory, waitUntil } from '../stories/support.ts'

t.test('a holder that was killed, but is still to be reaped by its parent, has ended', async (t) => {
  // The shell becomes a program that never asks for its child.
  const parent = spawn('sh', ['-c', 'sleep 600 & echo $!; exec sleep 600'], { stdio: ['ignore', 'pipe', 'ignore'] })
  t.teardown(() => parent.kill('SIGKILL'))
  const pid = Number(String((await once(parent.stdout, 'data'))[0]))
  const stat = () => readFileSync(`/proc/${pid}/stat`, 'latin1').split(') ')[1]?.split(' ') ?? []
  const dir = temporaryDirectory(t)
  const boot = readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim()
  writeFileSync(join(dir, 'lock'), JSON.stringify({ pid, started: stat()[19], boot }))
  await t.rejects(lockStore(dir), { code: 'store_unusable', message: new RegExp(`pid ${pid}\\) runs on this store`) })
  await waitUntil('the shell is the other program', async () =>
    readFileSync(`/proc/${parent.pid}/comm`, 'utf8').startsWith('sleep'),
  )
  process.kill(pid, 'SIGKILL')
  await waitUntil('it waits to be reaped', async () => stat()[0] === 'Z')
  await (await lockStore(dir))()
})
