/** What is refused in the settings before the server starts, each by a sentence that names the setting and what is accepted. */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { readConfig } from '../../domain/config.ts'

const dir = t.testdir({ empty: '', binary: Buffer.from('abc\0defghi') })
const environment = (settings: object, env: Record<string, string> = {}) => {
  const configFile = join(dir, 'config.json')
  writeFileSync(configFile, JSON.stringify({ environments: { default: settings } }))
  return readConfig({ configFile, env: { HANGAR_DATA: dir, ...env } })
}

const REFUSED: readonly [string, object, Record<string, string>, RegExp][] = [
  ['a variable with a sign in its name', { env: { 'A=B': 'x' } }, {}, /default\.env: .*A=B/],
  ['a variable with a NUL', { env: { A: 'x\0y' } }, {}, /default\.env\.A: .*without NUL/],
  ['a secret with a space in its name', { secrets: { 'A B': { from: 'env:X' } } }, {}, /default\.secrets: .*A B/],
  ['an argument with a NUL', { harness_options: { argv: ['a\0b'] } }, {}, /argv\[0\]: .*without NUL/],
  ['a relative mount', { mounts: ['cache'] }, {}, /mounts\[0\]: .*absolute path/],
  ['an empty secret file', { secrets: { A: { from: `file:${dir}/empty` } } }, {}, /secrets\.A .*the file is empty/],
  ['a binary secret', { secrets: { A: { from: `file:${dir}/binary` } } }, {}, /secrets\.A .*NUL byte/],
  ['a secret that is not set', { secrets: { A: { from: 'env:NONE' } } }, {}, /secrets\.A .*not set in the server's/],
  ['a port beyond the last', {}, { HANGAR_LISTEN: '127.0.0.1:65536' }, /HANGAR_LISTEN="127.0.0.1:65536".*0 to 65535/],
  ['egress to no port', { egress: ['example.com:70000'] }, {}, /egress\[0\]: .*HOST:PORT/],
]
t.test('an environment whose name is none', async (t) => {
  const configFile = join(dir, 'config.json')
  writeFileSync(configFile, JSON.stringify({ environments: { My_Env: {} } }))
  t.throws(() => readConfig({ configFile, env: { HANGAR_DATA: dir } }), { message: /environments: .*My_Env/ })
})
for (const [what, settings, env, sentence] of REFUSED)
  t.test(what, async (t) => {
    t.throws(() => environment(settings, env), { code: 'config_invalid', message: sentence })
  })

t.test('what is at the border is taken', async (t) => {
  const { port, environments } = environment(
    { env: { _a1: 'two\nlines' }, mounts: ['/with a space'], egress: ['example.com:65535'] },
    { HANGAR_LISTEN: '127.0.0.1:65535' },
  )
  t.equal(port, 65_535)
  t.match(environments.get('default') ?? {}, { mounts: ['/with a space'] })
})
