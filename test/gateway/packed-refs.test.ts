import t from 'tap'
import type { Oid } from '../../domain/names.ts'
import { packedChanges, packedRefs } from '../../gateway/git/packed-refs.ts'
import { seeded } from '../orchestrator/faulty.ts'

const HEADER = '# pack-refs with: peeled fully-peeled sorted \n'

/** The file as git writes it; tags have a line for what they name. */
function fileOf(refs: ReadonlyMap<string, string>): Buffer {
  const lines = [...refs]
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([name, oid]) => `${oid} ${name}\n${name.startsWith('refs/tags/') ? `^${'e'.repeat(40)}\n` : ''}`)
  return Buffer.from(HEADER + lines.join(''), 'latin1')
}

function applied(before: Buffer, after: Buffer): Map<string, Oid> {
  const refs = new Map([...packedRefs(before)].map(({ name, oid }) => [name, oid]))
  for (const { name, oid } of packedChanges(before, after) ?? []) {
    if (oid === null) refs.delete(name)
    else refs.set(name, oid)
  }
  return refs
}

const sorted = (refs: ReadonlyMap<string, string>) => [...refs].sort(([a], [b]) => (a < b ? -1 : 1))

t.test('what changed between two states of packed-refs is all that changed, and no more', async (t) => {
  const random = seeded(7)
  const oid = () => Array.from({ length: 40 }, () => '0123456789abcdef'[Math.floor(random() * 16)]).join('')
  const name = () => {
    const folder = ['refs/heads', 'refs/heads/hangar', 'refs/tags', 'refs/hangar/sessions', 'refs/\xff\xfe'][
      Math.floor(random() * 5)
    ]
    return `${folder}/${Math.floor(random() * 100_000)}${random() < 0.1 ? 'x'.repeat(300) : ''}`
  }
  for (let round = 0; round < 60; round++) {
    const refs = new Map<string, string>()
    const count = [0, 1, 20, 4_000][round % 4] ?? 0
    for (let at = 0; at < count; at++) refs.set(name(), oid())
    const before = fileOf(refs)
    const changed = new Set<string>()
    const names = [...refs.keys()]
    for (let at = Math.floor(random() * 12); at > 0; at--) {
      const old = names[Math.floor(random() * names.length)]
      const one = old === undefined || random() < 0.4 ? name() : old
      changed.add(one)
      if (random() < 0.4) refs.delete(one)
      else refs.set(one, oid())
    }
    const after = fileOf(refs)
    t.strictSame(sorted(applied(before, after)), sorted(refs), `round ${round}`)
    const told = packedChanges(before, after) ?? []
    t.strictSame(
      told.filter((change) => !changed.has(change.name)),
      [],
      'and nothing else is told',
    )
    t.strictSame(packedChanges(after, after), [])
  }
})

t.test('a file that does not say that it is sorted is read whole', async (t) => {
  const refs = new Map([['refs/heads/main', 'a'.repeat(40)]])
  const plain = Buffer.from(`# pack-refs with: peeled \n${'a'.repeat(40)} refs/heads/main\n`)
  t.equal(packedChanges(plain, fileOf(refs)), null)
  t.equal(packedChanges(fileOf(refs), Buffer.alloc(0)), null)
  t.strictSame([...packedRefs(plain)], [{ name: 'refs/heads/main', oid: 'a'.repeat(40) }])
})
