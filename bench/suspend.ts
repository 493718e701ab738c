/**
 * What it costs to make, suspend and resume a session, by the size of its tree, and whether it comes back exactly. `npm run bench:suspend`
 * (10, 5,000 and 100,000 files), with `--quick` the small ones. Starts a server in this process on temporary data.
 */
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { readConfig } from '../domain/config.ts'
import { startServer } from '../surfaces/server.ts'
import { api, gitState, sandboxCheckout, shell, workTree } from '../test/stories/support.ts'

const SIZES = process.argv.includes('--quick') ? [10, 2_000] : [10, 5_000, 100_000]
const CHANGE =
  'for i in 1 2 3 4 5; do echo changed >d0/f$i; done; git add d0/f1; echo loose >loose; git commit -qm one d0/f2; rm d0/f3; chmod +x d0/f4'

const root = mkdtempSync(join(tmpdir(), 'hangar-bench-'))
try {
  await bench()
} finally {
  rmSync(root, { recursive: true, force: true, maxRetries: 5 })
}

async function bench(): Promise<void> {
  mkdirSync(join(root, 'data'), { recursive: true })
  const argv = ['sh', '-c', 'read -r line; eval "$line"']
  const config = { environments: { default: { harness_options: { argv } } } }
  writeFileSync(join(root, 'data', 'hangar.config.json'), JSON.stringify(config))
  const env = { HOME: root, HANGAR_DATA: join(root, 'data'), HANGAR_LISTEN: '127.0.0.1:0' }
  const log = { info: () => {}, warn: () => {}, error: () => {} }
  const cliFile = join(root, 'cli.json')
  const server = await startServer({ config: readConfig({ env }), log, cliFile })
  try {
    const { token } = JSON.parse(readFileSync(cliFile, 'utf8')) as { token: string }
    const call = (method: string, path: string, body?: unknown) => api(server.url, token, { method, path, body })
    console.log('files     first turn   next turn   suspend   resume and turn   differing entries')
    for (const files of SIZES) {
      const repo = `bench/n${files}`
      await call('POST', '/api/repos', { slug: repo })
      await seed(files, `${server.url}/git/${repo}.git`, token)
      const name = `n${files}`
      const turn = async (path: string, body: object) => {
        const from = performance.now()
        await call('POST', path, body)
        for (;;) if ((await call('GET', `/api/sessions/${name}/wait?timeout_seconds=600`)).body.done) break
        return (performance.now() - from) / 1000
      }
      const first = await turn('/api/sessions', { name, repo, message: CHANGE })
      const next = await turn(`/api/sessions/${name}/turns`, { message: 'true' })
      const checkout = async () =>
        sandboxCheckout({ dataDir: join(root, 'data') }, (await call('GET', `/api/sessions/${name}`)).body.sandbox.id)
      const before = { tree: workTree(await checkout()), state: await gitState(await checkout()) }
      const from = performance.now()
      await call('POST', `/api/sessions/${name}/suspend`, {})
      const suspend = (performance.now() - from) / 1000
      const resume = await turn(`/api/sessions/${name}/turns`, { message: 'true' })
      const after = { tree: workTree(await checkout()), state: await gitState(await checkout()) }
      const paths = new Set([...Object.keys(before.tree), ...Object.keys(after.tree)])
      const differing = [...paths].filter((path) => before.tree[path] !== after.tree[path]).length
      const index = before.state.index === after.state.index && before.state.head === after.state.head ? 0 : 1
      const show = (seconds: number) => `${seconds.toFixed(2)} s`.padStart(10)
      console.log(
        `${String(files).padStart(6)} ${show(first)} ${show(next)} ${show(suspend)} ${show(resume)}          ${differing} of ${paths.size}${index === 0 ? ', index and HEAD the same' : ', index or HEAD differ'}`,
      )
      await call('POST', `/api/sessions/${name}/close`, {})
    }
  } finally {
    await server.close()
  }
}

async function seed(files: number, url: string, token: string): Promise<void> {
  const dir = join(root, `seed-${files}`)
  mkdirSync(dir)
  for (let at = 0; at < files; at++) {
    const folder = join(dir, `d${Math.floor(at / 100)}`)
    if (at % 100 === 0) mkdirSync(folder)
    writeFileSync(join(folder, `f${at}`), `${at}\n`)
  }
  await shell(
    dir,
    `git init -q -b main && git config gc.auto 0 && git add . && git commit -q -m base && git -c http.${url}.extraHeader='Authorization: Bearer ${token}' push -q ${url} main`,
  )
  rmSync(dir, { recursive: true, force: true, maxRetries: 10, retryDelay: 200 })
}
