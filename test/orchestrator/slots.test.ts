/** The queue of turns: bounded in all and by repo, and fair between those who ask. */
import t from 'tap'
import type { RepoSlug } from '../../domain/names.ts'
import { createSlots } from '../../orchestrator/slots.ts'

/** Asks for a slot; who was granted is noted in order. */
function asker(slots: ReturnType<typeof createSlots>) {
  const granted: string[] = []
  const releases = new Map<string, () => void>()
  const ask = async (name: string, requester: string, repo = 'acme/app', signal = new AbortController().signal) => {
    const release = await slots.take({ repo: repo as RepoSlug, requester, signal })
    granted.push(name)
    releases.set(name, release)
  }
  const settle = () => new Promise((resolve) => setImmediate(resolve))
  return {
    granted,
    settle,
    ask: (...args: Parameters<typeof ask>) => void ask(...args),
    release: async (name: string) => {
      releases.get(name)?.()
      await settle()
    },
  }
}

t.test('at most so many run, in the order of asking', async (t) => {
  const slots = createSlots({ max: 2, maxPerRepo: 9 })
  const { ask, granted, release, settle } = asker(slots)
  for (const name of ['a', 'b', 'c', 'd']) ask(name, 'one')
  await settle()
  t.same(granted, ['a', 'b'])
  t.same(slots.load(), { running: 2, queued: 2 })
  await release('b')
  await release('b')
  t.same(granted, ['a', 'b', 'c'], 'a slot is given back once')
})

t.test('a requester with one job does not wait behind one with a hundred', async (t) => {
  const slots = createSlots({ max: 4, maxPerRepo: 9 })
  const { ask, granted, release, settle } = asker(slots)
  for (let count = 0; count < 100; count++) ask(`many-${count}`, 'many')
  ask('few-0', 'few')
  ask('few-1', 'few')
  await settle()
  await release('many-0')
  t.equal(granted.at(-1), 'few-0')
  await release('many-1')
  t.equal(granted.at(-1), 'few-1', 'it has one running, the other has two')
  await release('many-2')
  t.equal(granted.at(-1), 'many-4')
})

t.test('a repo that is full keeps no other waiting', async (t) => {
  const slots = createSlots({ max: 3, maxPerRepo: 1 })
  const { ask, granted, release, settle } = asker(slots)
  ask('a', 'one', 'acme/app')
  ask('b', 'one', 'acme/APP')
  ask('c', 'one', 'acme/lib')
  await settle()
  t.same(granted, ['a', 'c'], 'slugs are unique whatever the case')
  await release('a')
  t.same(granted, ['a', 'c', 'b'])
})

t.test('an aborted wait goes through at once and holds nothing', async (t) => {
  const slots = createSlots({ max: 1, maxPerRepo: 9 })
  const { ask, granted, release, settle } = asker(slots)
  const stop = new AbortController()
  ask('a', 'one')
  ask('b', 'one', 'acme/app', stop.signal)
  ask('c', 'one')
  await settle()
  stop.abort()
  await settle()
  t.same(granted, ['a', 'b'])
  t.same(slots.load(), { running: 1, queued: 1 })
  await release('b')
  t.same(granted, ['a', 'b'], 'it held no slot')
  await release('a')
  t.same(granted, ['a', 'b', 'c'])
})
