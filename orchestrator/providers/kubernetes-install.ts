/** The first thing in a new pod: looks whether the image has what is needed, and puts hangar's helper and the grant in. */
import { readFile } from 'node:fs/promises'
import { pack } from 'tar-stream'
import { errors } from '../../domain/errors.ts'
import type { SandboxSpec } from '../../domain/sandbox.ts'
import { type PodLink, runCommand } from './kubernetes-exec.ts'
import { blobId } from './kubernetes-frames.ts'
import { POD_PATHS } from './kubernetes-pod.ts'
import { authorization, gitConfig } from './sandbox-git.ts'

/** Programs that hangar's helper calls; `sh` has been found by then. */
const PROGRAMS = 'git awk tar setsid env head tail wc sed grep tr find cat cut mv rm mkdir mkfifo sleep dd date kill'
const PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'

const INSTALL = `umask 077
PATH=\${PATH:-${PATH}}
for name in ${PROGRAMS}; do command -v "$name" >/dev/null 2>&1 || missing="\${missing-} $name"; done
if [ -n "\${missing-}" ]; then echo "lacks$missing"; exit 3; fi
for dir in ${[POD_PATHS.home, POD_PATHS.repo, POD_PATHS.run, POD_PATHS.hangar, '/tmp'].join(' ')}; do
  { : >"$dir/.hangar-probe" && rm -f "$dir/.hangar-probe"; } 2>/dev/null || { echo "has no writable $dir for user $(id -u)"; exit 3; }
done
in=${POD_PATHS.run}/.install.$$
head -c "$1" >"$in"
[ "$(git hash-object --stdin <"$in")" = "$2" ] || { rm -f "$in"; exit 75; }
tar -x -f "$in" -C / && rm -f "$in"
`

/** Done again, it renews the grant and the helper and leaves the rest. Throws `sandbox_failed` with what the image lacks. */
export async function installInPod(pod: PodLink, spec: SandboxSpec, helperDir: string): Promise<void> {
  const tar = await filesOf(spec, helperDir)
  const result = await runCommand(pod, ['sh', '-c', INSTALL, 'sh', String(tar.length), blobId(tar)], {
    stdin: tar,
    forMs: 120_000,
  })
  if (result.exitCode === 0) return
  if (result.exitCode === 3)
    throw errors.sandboxFailed(
      `the image ${spec.image} ${result.out.toString('utf8').trim()}; an image for sandboxes needs sh, git, awk, tar and the usual small programs (Debian's and Alpine's with git do)`,
    )
  throw errors.sandboxFailed(`hangar's helper could not be put into the pod ${pod.name}`, {
    reason: `exit status ${result.exitCode} ${result.err}`.slice(0, 2_000),
  })
}

async function filesOf(spec: SandboxSpec, helperDir: string): Promise<Buffer> {
  const tar = pack()
  const put = (path: string, mode: number, text: string | Buffer) =>
    tar.entry({ name: path.slice(1), mode, uid: 1000, gid: 1000 }, text)
  for (const name of ['hangar-agent', 'hangar-pod'])
    put(`${POD_PATHS.helperDir}/${name}`, 0o755, await readFile(`${helperDir}/${name}`))
  put(`${POD_PATHS.hangar}/authorization`, 0o600, authorization(spec))
  put(POD_PATHS.grantFile, 0o600, `${spec.grant}\n`)
  put(`${POD_PATHS.run}/gitconfig`, 0o644, gitConfigOf(spec))
  put(`${POD_PATHS.run}/profile`, 0o600, profileOf(spec))
  tar.finalize()
  const chunks: Buffer[] = []
  for await (const chunk of tar as AsyncIterable<Buffer>) chunks.push(chunk)
  return Buffer.concat(chunks)
}

/** The checkout's directory is the volume's, not the user's own: git would refuse to work in it. */
function gitConfigOf(spec: SandboxSpec): string {
  return `${gitConfig(spec, POD_PATHS.grantFile)}[safe]\n\tdirectory = ${POD_PATHS.repo}\n`
}

/** What every program inside starts with, on top of the image's own environment. */
function profileOf(spec: SandboxSpec): string {
  const before = [POD_PATHS.helperDir, ...spec.path].map(quote).join(':')
  return [
    `export PATH=${before}:"\${PATH:-${PATH}}"`,
    `export HOME=${POD_PATHS.home} LANG=C.UTF-8 GIT_CONFIG_SYSTEM=${POD_PATHS.run}/gitconfig GIT_TERMINAL_PROMPT=0`,
    '',
  ].join('\n')
}

/** A string as one word of sh. */
export function quote(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`
}
