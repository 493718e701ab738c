/** A sandbox that is frozen, killed or removed behind the server's back: it is noticed, the turn says what happened, and the next one works. */
import { readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { noneLeft, processesNaming } from '../orchestrator/provider-conformance.ts'
import { type Hangar, sandboxCheckout, shell, startHangar, waitUntil } from './support.ts'

const MARKER = `hangar-lost-story-${process.pid}`
const AGENT = `
case $(cat) in
  hang*) bash -c "exec -a ${MARKER} sleep 300" & echo "up $HANGAR_TURN"; until [ -e go ]; do sleep 0.1; done; kill %1; hangar-agent done "went on";;
  keep*) echo ignored >.git/info/exclude; echo kept >ignored; hangar-agent done "kept";;
  look*) hangar-agent done "$(cat ignored)";;
  *) hangar-agent done "worked";;
esac
`

t.setTimeout(300_000)

interface Hung {
  readonly hangar: Hangar
  readonly dir: string
  readonly supervisor: number
  // biome-ignore lint/suspicious/noExplicitAny: an answer that is looked into
  turn(number: number): Promise<any>
  // biome-ignore lint/suspicious/noExplicitAny: an answer that is looked into
  ended(number: number): Promise<any>
  works(): Promise<void>
}

/** A session whose first turn hangs; its sandbox is looked at every 150 ms. */
async function hung(t: Test): Promise<Hung> {
  const hangar = await startHangar(t, { agent: AGENT, limits: { sandboxLookMs: 150 } })
  await hangar.api('POST', '/api/repos', { slug: 'acme/app' })
  await shell(hangar.dir, 'git init -q -b main seed; cd seed; echo one >a.txt; git add .; git commit -q -m base')
  await hangar.git(join(hangar.dir, 'seed'), ['push', '-q', `${hangar.url}/git/acme/app.git`, 'main'])
  await hangar.api('POST', '/api/sessions', { name: 's', repo: 'acme/app', message: 'hang' })
  const read = async () => (await hangar.api('GET', '/api/sessions/s')).body
  await waitUntil('it hangs', async () =>
    JSON.stringify((await hangar.api('GET', '/api/sessions/s/events')).body).includes('up 1'),
  )
  const dir = join(hangar.dataDir, 'sandboxes', (await read()).sandbox.id)
  const [run = ''] = readdirSync(join(dir, 'turns')).filter((key) => key.startsWith('1-'))
  const supervisor = Number(readFileSync(join(dir, 'turns', run, 'pid'), 'utf8').split(' ')[0])
  const turn = async (number: number) => (await read()).turns[number - 1]
  const ended = async (number: number) => {
    const { body } = await hangar.api('GET', `/api/sessions/s/wait?timeout_seconds=60&turn=${number}`)
    t.equal(body.done, true, `turn ${number} ended`)
    return turn(number)
  }
  const works = async () => {
    t.equal(await noneLeft(MARKER), 0, 'nothing of the lost sandbox runs on')
    t.equal((await hangar.api('POST', '/api/sessions/s/turns', { message: 'work' })).status, 202)
    t.match(await ended(2), { outcome: 'exited', summary: 'worked', error: null })
    t.equal((await hangar.api('POST', '/api/sessions/s/close', {})).status, 200)
  }
  return { hangar, dir, supervisor, turn, ended, works }
}

t.test('a supervisor that was stopped is told of, and the turn goes on when it does', async (t) => {
  const { hangar, dir, supervisor, turn, ended } = await hung(t)
  process.kill(supervisor, 'SIGSTOP')
  await waitUntil('it is noticed', async () => (await turn(1)).warnings.length > 0)
  const said = /the sandbox stands still: the process that supervises its run was stopped \(SIGSTOP\)/
  t.match((await turn(1)).warnings, [said])
  t.match(JSON.stringify((await hangar.api('GET', '/api/sessions/s/events')).body), said)
  process.kill(supervisor, 'SIGCONT')
  writeFileSync(join(sandboxCheckout(hangar, dir.split('/').at(-1) ?? ''), 'go'), '')
  t.match(await ended(1), { outcome: 'exited', summary: 'went on', warnings: [said] })
})

t.test(
  'a sandbox that is paused when its turn ends, or when the next begins, is made to go on, with all that is in it',
  async (t) => {
    const { hangar, dir, turn, ended } = await hung(t)
    const pause = () => writeFileSync(join(dir, 'paused'), '')
    pause()
    writeFileSync(join(sandboxCheckout(hangar, dir.split('/').at(-1) ?? ''), 'go'), '')
    t.match(await ended(1), { outcome: 'exited', summary: 'went on', error: null, checkpoint: /^[0-9a-f]{40}$/ })
    await hangar.api('POST', '/api/sessions/s/turns', { message: 'keep' })
    t.match(await ended(2), { outcome: 'exited', summary: 'kept' })
    pause()
    await hangar.api('POST', '/api/sessions/s/turns', { message: 'look' })
    t.match(await ended(3), { outcome: 'exited', summary: 'kept', warnings: [] }, 'what git ignores is there still')
    pause()
    t.equal((await hangar.api('POST', '/api/sessions/s/suspend', {})).status, 200)
    t.match((await turn(3)).summary, 'kept')
  },
)

t.test('a directory that was removed is a lost sandbox; what ran in it ends', async (t) => {
  const { dir, ended, works } = await hung(t)
  rmSync(dir, { recursive: true, force: true, maxRetries: 5 })
  t.match(await ended(1), {
    outcome: 'failed',
    error: { code: 'sandbox_lost', message: /(not|no sandbox .*) on this host|record of the run is gone/ },
  })
  await works()
})

t.test('a supervisor that was killed is a lost run', async (t) => {
  const { supervisor, ended, works } = await hung(t)
  process.kill(supervisor, 'SIGKILL')
  t.match(await ended(1), { outcome: 'failed', error: { code: 'sandbox_lost', message: /supervised the run is gone/ } })
  await works()
})

t.test('a program whose isolation was killed has ended by a signal', async (t) => {
  const { dir, ended, works } = await hung(t)
  const bubblewraps = processesNaming(dir).filter((pid) =>
    /(^|\/)bwrap$/.test(readFileSync(`/proc/${pid}/cmdline`, 'latin1').split('\0')[0] ?? ''),
  )
  if (bubblewraps.length === 0) return void t.pass('there is no bubblewrap here')
  for (const pid of bubblewraps)
    try {
      process.kill(pid, 'SIGKILL')
    } catch {
      // It ended with the one before it.
    }
  t.match(await ended(1), { outcome: 'failed', error: { code: 'agent_failed', message: /137/ } })
  await works()
})
