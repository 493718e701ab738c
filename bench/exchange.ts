/**
 * How much memory the server's own process takes while large payloads go through it, and what is left of that after repeats.
 * Usage: `node dist/bench/exchange.js [--quick]`. Prints a table; asserts that each payload came out as it went in.
 */
import { startPayloadServer } from './payloads.ts'

const quick = process.argv.includes('--quick')
const REPEATS = quick ? 2 : 6
const MB = 1_048_576

async function bench(): Promise<void> {
  const server = await startPayloadServer()
  process.once('SIGINT', () => void server.close().then(() => process.exit(1)))
  try {
    await server.bundle(1)
    await server.artifacts([1])
    const rows: readonly (readonly [what: string, megabytes: number, go: () => Promise<boolean>])[] = [
      ...[1, 10, 48].map((size) => [`bundle of ${size} MB`, size, () => server.bundle(size)] as const),
      ...[1, 9.9].map((size) => [`patch of ${size} MB`, size, () => server.patch(size)] as const),
      ...[1, 10, 25].map((size) => [`artifact of ${size} MB`, size, () => server.artifacts([size])] as const),
      ['4 artifacts of 25 MB', 100, () => server.artifacts([25, 25, 25, 25])],
    ]
    console.log('payload               | idle before | peak growth | per payload | idle after each repeat (MB)')
    for (const [what, megabytes, go] of rows) {
      await server.settle()
      const before = server.memory()?.now ?? 0
      const after: number[] = []
      let peak = 0
      for (let repeat = 0; repeat < REPEATS; repeat++) {
        if (!(await go())) throw new Error(`${what} did not come out as it went in`)
        peak = Math.max(peak, (server.memory()?.peak ?? 0) - before)
        await server.settle()
        after.push((server.memory()?.now ?? 0) / MB)
      }
      console.log(
        [
          what.padEnd(21),
          `${(before / MB).toFixed(0)}`.padStart(11),
          `${(peak / MB).toFixed(0)}`.padStart(11),
          `${(peak / MB / megabytes).toFixed(1)}×`.padStart(11),
          after.map((value) => value.toFixed(0)).join(' '),
        ].join(' | '),
      )
    }
  } finally {
    await server.close()
  }
}

await bench()
