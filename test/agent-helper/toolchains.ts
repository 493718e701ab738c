/** The shells and awks that are installed, as PATHs, so that one script is tried under each pair. */
import { spawnSync } from 'node:child_process'
import { mkdirSync, symlinkSync } from 'node:fs'
import { join } from 'node:path'

/** What busybox stands in for besides awk: all that hangar-agent calls. */
const TOOLS =
  'od tr fold sed cp find ls sort cut head tail paste mktemp date xargs grep cksum wc mv rm cat ln chmod mkdir mkfifo dd sleep'

/** Name and PATH of each pair of a shell and an awk; with busybox's awk, its other tools as well. */
export function toolchains(dir: string): { readonly name: string; readonly path: string }[] {
  const which = (name: string) =>
    spawnSync('sh', ['-c', `command -v ${name}`])
      .stdout.toString()
      .trim()
  const pairs = ['dash', 'bash', 'busybox'].flatMap((shell) =>
    ['mawk', 'gawk', 'busybox'].map((awk) => [shell, awk] as const),
  )
  return pairs.flatMap(([shell, awk]) => {
    const [sh, awkFile] = [which(shell), which(awk)]
    if (sh === '' || awkFile === '') return []
    const bin = join(dir, `tools-${shell}-${awk}`)
    mkdirSync(bin, { recursive: true })
    symlinkSync(sh, join(bin, 'sh'))
    symlinkSync(awkFile, join(bin, 'awk'))
    if (awk === 'busybox') for (const tool of TOOLS.split(' ')) symlinkSync(awkFile, join(bin, tool))
    return [{ name: `${shell} with ${awk}`, path: `${bin}:${process.env['PATH'] ?? ''}` }]
  })
}
