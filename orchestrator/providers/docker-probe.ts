/** The first command in a new sandbox: whether its image has what hangar needs, and its user can work there. A sentence says what is missing. */
import { errors } from '../../domain/errors.ts'
import { execInside, type Inside } from './docker-exec.ts'
import { RELAY_PORTS, RELAY_PROGRAMS } from './relay-inside.ts'

/** All that hangar-agent and the checkpoints use. */
const TOOLS =
  'sh git awk tar sed grep od tr dd cut sort head tail wc cat cp mv rm mkdir mkfifo readlink find xargs ls cmp paste fold date sleep setsid id'

const SCRIPT = `
for tool in ${TOOLS}; do command -v $tool >/dev/null 2>&1 || echo "missing $tool"; done
for dir in "$HOME" /tmp; do { : >"$dir/.hangar-probe"; } 2>/dev/null && rm -f "$dir/.hangar-probe" || echo "unwritable $dir"; done
if command -v id >/dev/null; then [ "$(id -u)" = 1000 ] || echo "uid $(id -u)"; fi
if command -v git >/dev/null; then git --version >/dev/null 2>&1 || echo "missing git"; fi
`

/** The relay listens a moment after the container began; a port stands in the kernel's table in hexadecimal. */
const RELAY_SCRIPT = `
found=
for program in ${RELAY_PROGRAMS.join(' ')}; do command -v $program >/dev/null 2>&1 && found=yes; done
[ -n "$found" ] || { echo "norelay"; exit 0; }
tries=0
until grep -q ': 0100007F:${RELAY_PORTS.gateway.toString(16).toUpperCase().padStart(4, '0')} 00000000:0000 0A' /proc/net/tcp; do
  tries=$((tries + 1))
  [ $tries -lt 200 ] || { echo "deaf"; exit 0; }
  sleep 0.05
done
`

/** Throws `sandbox_failed` with what the image lacks. */
export async function probeSandbox(
  inside: Inside,
  { image, relay }: { readonly image: string; readonly relay: boolean },
): Promise<void> {
  const run = await execInside(inside, ['sh', '-c', relay ? SCRIPT + RELAY_SCRIPT : SCRIPT], {
    timeoutMs: 60_000,
    maxOutputBytes: 65_536,
  })
  const lines = run.out.toString('utf8').trim().split('\n')
  const named = (word: string) =>
    lines.filter((line) => line.startsWith(`${word} `)).map((line) => line.slice(word.length + 1))
  const missing = [...new Set(named('missing'))]
  if (missing.length > 0)
    throw errors.sandboxFailed(
      `the image ${image} lacks ${missing.join(', ')}; a sandbox needs git, awk, tar and the usual commands of a POSIX system: put them into the image`,
    )
  const [unwritable] = named('unwritable')
  if (unwritable !== undefined)
    throw errors.sandboxFailed(
      `user 1000 cannot write ${unwritable} in a sandbox of ${image}: is the disk full, or a user remapped?`,
    )
  const [uid] = named('uid')
  if (uid !== undefined)
    throw errors.sandboxFailed(`a sandbox of ${image} runs as user ${uid} where 1000 was asked for`)
  if (lines.includes('norelay'))
    throw errors.sandboxFailed(
      `the image ${image} has none of ${RELAY_PROGRAMS.join(', ')}, one of which must lead to the gateway from a sandbox without a network that does: put one into the image, or take egress out of the environment and let the server listen where containers reach it (HANGAR_LISTEN=0.0.0.0:4264)`,
    )
  if (lines.includes('deaf'))
    throw errors.sandboxFailed(`the relay to the gateway did not start in a sandbox of ${image}`)
}
