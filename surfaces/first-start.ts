/** The first start makes an admin token and leaves it where the CLI of the same machine finds it. */
import { existsSync, mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { dirname, join } from 'node:path'
import type { ConfigSources } from '../domain/config.ts'
import { errors, messageOf } from '../domain/errors.ts'
import type { Tokens } from '../gateway/tokens.ts'

/** `${XDG_CONFIG_HOME:-~/.config}/hangar/cli.json`: `{url, token}`, mode 0600. */
export function cliFile(env: ConfigSources['env']): string {
  return join(env['XDG_CONFIG_HOME'] ?? join(env['HOME'] ?? homedir(), '.config'), 'hangar', 'cli.json')
}

/**
 * Makes the admin token of a store that has no live one, and writes the CLI's file; a file for another server is kept as `cli.json.old`.
 * On later starts only the URL in the file is brought up to date, when its token is one of this server's.
 */
export async function welcomeCli(file: string, url: string, tokens: Tokens): Promise<{ readonly made: boolean }> {
  const known = readCliFile(file)
  if (known !== null && tokens.authenticate(known.token) !== null) {
    if (known.url !== url) writeCliFile(file, { url, token: known.token })
    return { made: false }
  }
  const live = (await tokens.list()).filter((token) => token.scopes.includes('admin') && token.revokedAt === null)
  if (live.length > 0) return { made: false }
  const { token, secret } = await tokens.create({
    name: 'admin (made at the first start)',
    scopes: ['admin'],
    repos: null,
    expiresAt: null,
  })
  try {
    if (existsSync(file)) renameSync(file, `${file}.old`)
    writeCliFile(file, { url, token: secret })
  } catch (cause) {
    // Else nobody would ever know its secret, and no other would be made.
    await tokens.revoke(token.id)
    throw errors.configInvalid(
      `the admin token cannot be written to ${file}: ${messageOf(cause)}; make the directory writable, or name another with XDG_CONFIG_HOME`,
      {},
      cause,
    )
  }
  return { made: true }
}

interface CliFile {
  readonly url: string
  readonly token: string
}

function readCliFile(file: string): CliFile | null {
  try {
    const { url, token } = JSON.parse(readFileSync(file, 'utf8')) as Partial<CliFile>
    return typeof url === 'string' && typeof token === 'string' ? { url, token } : null
  } catch {
    return null
  }
}

function writeCliFile(file: string, content: CliFile): void {
  mkdirSync(dirname(file), { recursive: true, mode: 0o700 })
  const temporary = `${file}.${process.pid}.new`
  writeFileSync(temporary, `${JSON.stringify(content, null, 2)}\n`, { mode: 0o600 })
  renameSync(temporary, file)
}
