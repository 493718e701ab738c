/** Git's configuration inside a sandbox: the grant reaches the gateway and nobody else, and upstreams' URLs lead to the gateway. */
import { posix } from 'node:path'
import type { RepoSlug } from '../../domain/names.ts'
import type { SandboxSpec } from '../../domain/sandbox.ts'

/**
 * Git's system configuration: one credential helper, for the gateway's address only, which reads the grant when it is asked; and each URL under
 * which a repo of `mirrors` is known upstream, replaced by the gateway's.
 */
export function gitConfig(spec: Pick<SandboxSpec, 'gatewayUrl' | 'repo' | 'mirrors'>, grantFile: string): string {
  const file = `'${grantFile.replaceAll("'", "'\\''")}'`
  const helper = `!f() { test "$1" = get && printf 'username=x-hangar-grant\\npassword=%s\\n' "$(cat ${file})"; }; f`
  return `[credential]
	helper =
[credential ${quote(spec.gatewayUrl)}]
	helper = ${quote(helper)}
[http]
	followRedirects = false
${[...replacements(spec)].map(([url, by]) => `[url ${quote(by)}]\n\tinsteadOf = ${quote(url)}\n`).join('')}`
}

/** The grant as a setting of git's, which hangar-agent includes for its own fetch and push: nobody's `git config --list` shows it. */
export function authorization({ gatewayUrl, grant }: SandboxSpec): string {
  const basic = Buffer.from(`x-hangar-grant:${grant}`).toString('base64')
  return `[http ${quote(`${gatewayUrl}/git/`)}]\n\textraHeader = ${quote(`Authorization: Basic ${basic}`)}\n`
}

/** What may go on in a repository's name, so that a longer name is another repository's. */
const NAME_CHARACTERS = [...'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~+%@']

/**
 * What each URL is replaced by. Git compares beginnings, and the longest wins: `…/acme/app` would be that of `…/acme/app-docs` as well, so each
 * URL that goes on with a character of a name is replaced by itself. Source: git-config, `url.<base>.insteadOf`.
 */
function replacements(spec: Pick<SandboxSpec, 'gatewayUrl' | 'repo' | 'mirrors'>): ReadonlyMap<string, string> {
  const found = new Map<string, string>()
  const put = (url: string, by: string) => found.has(url) || found.set(url, by)
  for (const { repo, url } of spec.mirrors) put(url, atGateway(spec.gatewayUrl, repo))
  for (const { repo, url } of spec.mirrors)
    for (const form of [...formsOf(url), ...besideOrigin(spec, url)]) {
      put(form, atGateway(spec.gatewayUrl, repo))
      put(`${form}.git`, atGateway(spec.gatewayUrl, repo))
    }
  for (const url of [...found.keys()]) for (const next of NAME_CHARACTERS) put(url + next, url + next)
  return found
}

function atGateway(gatewayUrl: string, repo: RepoSlug): string {
  return `${gatewayUrl}/git/${repo}.git`
}

/** The https, ssh and scp forms of an upstream's URL, without `.git`. */
function formsOf(url: string): string[] {
  const { origin, hostname, pathname } = new URL(url)
  const path = pathname.replace(/\.git$/, '')
  return [origin + path, `ssh://git@${hostname}${path}`, `git@${hostname}:${path.slice(1)}`]
}

/**
 * What a relative URL of `.gitmodules` (`../lib.git`) leads to: it is taken from the checkout's origin, the gateway, where the repo may have
 * another name than beside its own upstream.
 */
function besideOrigin(
  { gatewayUrl, repo, mirrors }: Pick<SandboxSpec, 'gatewayUrl' | 'repo' | 'mirrors'>,
  url: string,
) {
  const own = mirrors.find((mirror) => mirror.repo === repo)
  if (own === undefined || new URL(own.url).origin !== new URL(url).origin) return []
  const way = posix.relative(new URL(own.url).pathname, new URL(url).pathname.replace(/\.git$/, ''))
  const path = posix.join(`/git/${repo}.git`, way)
  const taken = mirrors.some((mirror) => path === `/git/${mirror.repo}`)
  return way === '' || taken || !path.startsWith('/git/') ? [] : [gatewayUrl + path]
}

/** A string as git's configuration quotes it. */
function quote(text: string): string {
  return `"${text.replaceAll('\\', '\\\\').replaceAll('"', '\\"')}"`
}
