/** Large payloads come out as they went in, and the server's own process takes little more memory for them than they are, however often. */
import t from 'tap'
import { startPayloadServer } from '../../bench/payloads.ts'

const MB = 1_048_576
/** Base64 in a body of JSON, the text of it, and its bytes; generous, since memory is given back when the runtime likes to. */
const most = (megabytes: number) => (8 * megabytes + 150) * MB

t.setTimeout(600_000)
const server = await startPayloadServer()
t.teardown(() => server.close())

t.test('payloads pass in bounded memory', async (t) => {
  if (server.memory() === null) t.comment('this system has no /proc: memory is not looked at')
  const rows: readonly (readonly [what: string, megabytes: number, repeats: number, go: () => Promise<boolean>])[] = [
    ['a bundle of 20 MB', 20, 2, () => server.bundle(20)],
    ['a bundle that is refused, 25 times', 20, 25, () => server.refusedBundle(20)],
    ['a patch of 9 MB', 9, 2, () => server.patch(9)],
    ['three artifacts', 25, 2, () => server.artifacts([1, 4, 20])],
  ]
  for (const [what, megabytes, repeats, go] of rows)
    await t.test(what, async (t) => {
      await server.settle()
      const before = server.memory()?.now ?? 0
      for (let repeat = 0; repeat < repeats; repeat++) t.ok(await go(), 'as it went in')
      const grown = (server.memory()?.peak ?? 0) - before
      t.comment(`${Math.round(grown / MB)} MB more at most`)
      t.ok(grown < most(megabytes), `${Math.round(grown / MB)} MB is less than ${most(megabytes) / MB} MB`)
    })
})
