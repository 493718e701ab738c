/** Hand-over and return are exact, whatever state the working tree is in. */
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { must, pooled, sandboxOf, turnOf, untouched, type Whole, whole } from './round-trip.ts'
import { shell, startHangar } from './support.ts'
import {
  asItShouldReturn,
  baseScript,
  type CheckoutShape,
  STATES,
  type WorkingState,
  within,
} from './working-states.ts'

/** Makes the state that it is given as a script; without one it does nothing. */
const AGENT = `
cat >/dev/null
make=$HANGAR_IO/in/$HANGAR_TURN/make.sh
if [ -f "$make" ]; then exec sh -e "$make"; fi
`

/** States that do not disturb each other share a checkout, each in a directory of its own. */
const BESIDE = STATES.filter((state) => state.alone !== true).map((state, at) => ({ ...state, place: `s${at}` }))
const ALONE = STATES.filter((state) => state.alone === true)
const TOGETHER: WorkingState = {
  name: 'many states side by side',
  make: BESIDE.map(({ make, place }) => `(cd ${place}; ${make})`).join('\n'),
}

t.setTimeout(2_000_000)
const hangar = await startHangar(t, { agent: AGENT })
const base = join(hangar.dir, 'base')
mkdirSync(base)
await shell(base, baseScript(BESIDE.map(({ place }) => place)))
await shell(base, 'git config uploadpack.allowFilter true; git config uploadpack.allowAnySHA1InWant true')
const url = `${hangar.url}/git/acme/app.git`
await must(hangar.cli(['repo', 'add', 'acme/app']))
await must(hangar.git(base, ['push', '-q', url, 'main']))

t.test('every state goes in and comes back', async (t) => {
  const trips = pooled([TOGETHER, ...ALONE], (state, place) => handOverAndReturn(`in-${place}`, state))
  const [together] = trips
  for (const state of BESIDE)
    await t.test(state.name, async (t) => {
      const trip = await together
      if (trip === undefined) throw new Error('no such trip')
      const expected = asItShouldReturn(state, within(trip.local, state.place))
      const sandbox = within(trip.sandbox, state.place)
      t.strictSame(sandbox, expected, 'in')
      t.strictSame(within(trip.back, state.place), sandbox, 'back')
      if (state.named !== undefined) t.match(trip.said, state.named, 'what does not travel is named')
    })
  for (const [at, state] of [TOGETHER, ...ALONE].entries())
    await t.test(state.name, async (t) => {
      const trip = await trips[at]
      if (trip === undefined) throw new Error('no such trip')
      t.strictSame(trip.after, trip.before, 'handing over changes nothing in the checkout')
      t.equal(trip.sandbox.head, trip.local.head, 'HEAD')
      if (state.named !== undefined) t.match(trip.said, state.named, 'what does not travel is named')
      else if (state !== TOGETHER) t.notMatch(trip.said, /^hangar: |note:/m, 'nothing to say')
      if (state !== TOGETHER) t.strictSame(trip.sandbox, asItShouldArrive(state, trip.local, trip.sandbox), 'in')
      t.strictSame(trip.back, trip.sandbox, 'back')
    })
})

t.test('every state that an agent makes comes out', async (t) => {
  const alone = ALONE.filter((state) => state.checkout === undefined)
  const trips = pooled([TOGETHER, ...alone], (state, at) => makeAndReturn(`out-${at}`, state))
  const [together] = trips
  for (const state of BESIDE)
    await t.test(state.name, async (t) => {
      const trip = await together
      if (trip === undefined) throw new Error('no such trip')
      t.strictSame(within(trip.back, state.place), asItShouldReturn(state, within(trip.sandbox, state.place)))
      if (state.warned !== undefined) t.match(trip.warnings.join('\n'), state.warned)
    })
  for (const [at, state] of alone.entries())
    await t.test(state.name, async (t) => {
      const trip = await trips[at + 1]
      if (trip === undefined) throw new Error('no such trip')
      t.strictSame(trip.back, asItShouldReturn(state, trip.sandbox))
      if (state.warned === undefined) t.strictSame(trip.warnings, [], 'no warning')
      else t.match(trip.warnings.join('\n'), state.warned)
    })
})

// --- the parts of a trip --------------------------------------------------------------------------------------------------

async function handOverAndReturn(name: string, state: WorkingState) {
  const checkout = await checkoutFor(name, state.checkout)
  await shell(checkout.top, state.make)
  const before = await untouched(checkout.top)
  const made = await must(
    hangar.cli(['session', 'new', name, 'go', '--from-local'], { cwd: checkout.cwd }),
    `handing over: ${state.name}`,
  )
  await turnOf(hangar, name)
  const after = await untouched(checkout.top)
  const sandbox = await whole(await sandboxOf(hangar, name))
  const local = await whole(checkout.top)
  return { before, after, local, sandbox, back: await pulled(name, state), said: made.err }
}

async function makeAndReturn(name: string, state: WorkingState) {
  const script = join(hangar.dir, name, 'make.sh')
  mkdirSync(join(hangar.dir, name))
  writeFileSync(script, `${state.make}\n`)
  await must(hangar.cli(['session', 'new', name, 'go', '--repo', 'acme/app', '--file', script]), state.name)
  const { warnings } = await turnOf(hangar, name)
  const top = await sandboxOf(hangar, name)
  return { sandbox: await whole(top), back: await pulled(name, state), warnings }
}

/** Into a clone that knows nothing of it. */
async function pulled(name: string, state: WorkingState): Promise<Whole> {
  const clone = join(hangar.dir, name, 'back')
  await shell(hangar.dir, `git clone -q base ${name}/back`)
  await must(hangar.cli(['session', 'pull', name, '--checkout'], { cwd: clone }), `pulling: ${state.name}`)
  return whole(clone)
}

/** A checkout in a shape of its own, that knows the server as its origin. */
async function checkoutFor(name: string, shape: CheckoutShape | undefined): Promise<{ top: string; cwd: string }> {
  const dir = join(hangar.dir, name)
  mkdirSync(dir)
  const odd = 'a "b:c;\\ d é'
  const clone = {
    shallow: 'git clone -q --depth 1 "file://$PWD/../base" app',
    partial: 'git clone -q --filter=blob:none "file://$PWD/../base" app',
    'separate git directory': 'git clone -q --separate-git-dir elsewhere ../base app',
    'odd directory name': `mkdir '${odd}' && git clone -q ../base '${odd}/app'`,
  } as Partial<Record<CheckoutShape, string>>
  await shell(dir, (shape === undefined ? undefined : clone[shape]) ?? 'git clone -q ../base app')
  const top = shape === 'odd directory name' ? join(dir, odd, 'app') : join(dir, 'app')
  // A partial clone goes on asking the remote that it was made from.
  await shell(top, shape === 'partial' ? `git remote add hangar ${url}` : `git remote set-url origin ${url}`)
  switch (shape) {
    case 'sub-directory':
      return { top, cwd: join(top, 'dir') }
    case 'linked worktree':
      await shell(top, 'echo other >>b; git worktree add -q -b linked ../linked')
      return { top: join(dir, 'linked'), cwd: join(dir, 'linked') }
    case 'no remote branches':
      await shell(
        top,
        'git branch -q --unset-upstream; git remote set-head -d origin; git update-ref -d refs/remotes/origin/main',
      )
      return { top, cwd: top }
    case 'submodule':
      await shell(
        dir,
        `git init -q lib; cd lib; echo l >l; git add l; git commit -q -m lib; cd ../app
         git -c protocol.file.allow=always submodule --quiet add "$PWD/../lib" lib; git commit -q -m 'a submodule'`,
      )
      return { top, cwd: top }
    case 'sparse':
      await shell(top, "git sparse-checkout set --no-cone '/*' '!/dir'")
      return { top, cwd: top }
    default:
      return { top, cwd: top }
  }
}

/** What the sandbox must hold: the checkout's own state, but for what the row's name says. */
function asItShouldArrive(state: WorkingState, local: Whole, sandbox: Whole): Whole {
  const expected = asItShouldReturn(state, local)
  if (state.checkout === 'submodule') for (const path of ['lib/.git', 'lib/l']) delete expected.files[path]
  if (state.asGitHasIt !== 'absent files') return expected
  const absent = Object.fromEntries(Object.entries(sandbox.files).filter(([path]) => path.startsWith('dir/')))
  return { ...expected, files: { ...expected.files, ...absent } }
}
