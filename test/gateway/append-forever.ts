/** A program for the crash test: appends to a ledger until it is killed, telling each append on stdout once it is acknowledged. */
import { openStore, ref } from './store-fixture.ts'

const [dataDir = '', writers = '3'] = process.argv.slice(2)
const { repo, ledger } = await openStore(dataDir)
await Promise.all(
  [...Array(Number(writers)).keys()].map(async (writer) => {
    for (let count = 1; ; count += 1) {
      const name = `${process.pid}/w${writer}/n${count}`
      const record = ref(`refs/hangar/sessions/s${writer % 2}/log`)
      await ledger.append(repo, record, async () => ({ files: new Map([[name, Buffer.from(name)]]), message: name }))
      process.stdout.write(`s${writer % 2} ${name}\n`)
    }
  }),
)
