/** Git's configuration inside a sandbox: the grant reaches the gateway and nobody else. */
import type { SandboxSpec } from '../../domain/sandbox.ts'

/** Git's system configuration: one credential helper, for the gateway's address only, which reads the grant when it is asked. */
export function gitConfig(gatewayUrl: string, grantFile: string): string {
  const file = `'${grantFile.replaceAll("'", "'\\''")}'`
  const helper = `!f() { test "$1" = get && printf 'username=x-hangar-grant\\npassword=%s\\n' "$(cat ${file})"; }; f`
  return `[credential]
	helper =
[credential ${quote(gatewayUrl)}]
	helper = ${quote(helper)}
[http]
	followRedirects = false
`
}

/** The grant as a setting of git's, which hangar-agent includes for its own fetch and push: nobody's `git config --list` shows it. */
export function authorization({ gatewayUrl, grant }: SandboxSpec): string {
  const basic = Buffer.from(`x-hangar-grant:${grant}`).toString('base64')
  return `[http ${quote(`${gatewayUrl}/git/`)}]\n\textraHeader = ${quote(`Authorization: Basic ${basic}`)}\n`
}

/** A string as git's configuration quotes it. */
function quote(text: string): string {
  return `"${text.replaceAll('\\', '\\\\').replaceAll('"', '\\"')}"`
}
