/** What a turn finds in HANGAR_IO when it begins: its attachments, its prompt and its schema, as one tar. */
import { Readable } from 'node:stream'
import { pack } from 'tar-stream'
import { IO } from '../domain/hangar-io.ts'
import type { Attachment } from './intake.ts'

export interface TurnInput {
  readonly turn: number
  readonly prompt: string
  /** Of the attachments under `$HANGAR_IO`, with a slash at its end unless it is that itself. */
  readonly folder: string
  readonly attachments: readonly Attachment[]
  readonly outputSchema: unknown
}

/** What earlier turns left in `$HANGAR_IO`, for a fresh sandbox: their attachments, and the newest of each artifact. */
export interface EarlierIo {
  readonly attachments: readonly { readonly path: string; readonly content: Uint8Array }[]
  readonly artifacts: readonly { readonly path: string; readonly content: Uint8Array }[]
}

/** A tar of it to unpack in `$HANGAR_IO`; null when there is nothing. */
export function earlierTar({ attachments, artifacts }: EarlierIo): Readable | null {
  if (attachments.length + artifacts.length === 0) return null
  const tar = pack()
  for (const { path, content } of attachments) tar.entry({ name: path, mode: 0o644 }, Buffer.from(content))
  for (const { path, content } of artifacts)
    tar.entry({ name: `${IO.artifacts}/${path}`, mode: 0o644 }, Buffer.from(content))
  tar.finalize()
  return Readable.from(tar as AsyncIterable<Uint8Array>)
}

/** A tar to unpack in `$HANGAR_IO`: `in/<turn>/`, the attachments, `PROMPT.md`, and `output-schema.json` when there is one. */
export function inputTar(input: TurnInput): Readable {
  const tar = pack()
  tar.entry({ name: `${IO.in}/${input.turn}/`, type: 'directory', mode: 0o755 })
  for (const { name, content } of input.attachments)
    tar.entry({ name: `${input.folder}${name}`, mode: 0o644 }, Buffer.from(content))
  tar.entry({ name: IO.prompt, mode: 0o644 }, input.prompt)
  if (input.outputSchema !== null) tar.entry({ name: IO.schema, mode: 0o644 }, schemaText(input.outputSchema))
  tar.finalize()
  return Readable.from(tar as AsyncIterable<Uint8Array>)
}

/** The script that puts a repair's prompt (its standard input) in the place of the turn's; all else in `$HANGAR_IO` stays as the agent left it. */
export const REPAIR_SCRIPT = `set -e
umask 022
cd "$HANGAR_IO"
rm -rf ${IO.prompt}
exec cat >${IO.prompt}
`

/** A schema for reading; without indentation where that alone could make megabytes of it. */
export function schemaText(schema: unknown): string {
  const compact = JSON.stringify(schema)
  return compact.length > 32_768 ? compact : JSON.stringify(schema, null, 2)
}

/**
 * The script that clears what the last turn left in `$HANGAR_IO`: `out/` (but not the artifacts) and `RESULT.md`, makes the directories,
 * and unpacks the tar on its standard input. Whatever the agent put in their place (a link, a file) goes, and what it closed is opened.
 * The checkout is made at the same time: what is no directory yet may be one by now, and is never removed as one.
 */
export const FILL_SCRIPT = `set -e
umask 022
for dir in "$HOME" "$HOME/.hangar" "\${HANGAR_IO%/*}" "$HANGAR_CONVERSATION"; do
  if [ -d "$dir" ]; then chmod u+rwx "$dir" 2>/dev/null || :; else rm -f "$dir" 2>/dev/null || :; fi
done
if [ -L "$HANGAR_IO" ] || { [ -e "$HANGAR_IO" ] && [ ! -d "$HANGAR_IO" ]; }; then rm -f "$HANGAR_IO"; fi
mkdir -p "$HANGAR_IO"
chmod -R u+rwX "$HANGAR_IO" 2>/dev/null || :
cd "$HANGAR_IO"
for name in in out; do if [ -L "$name" ] || { [ -e "$name" ] && [ ! -d "$name" ]; }; then rm -f "$name"; fi; done
for name in out/* out/.[!.]*; do
  [ "$name" = ${IO.artifacts} ] && [ ! -L "$name" ] && [ -d "$name" ] && continue
  rm -rf "$name"
done
rm -rf ${IO.summary} ${IO.prompt} ${IO.schema} "in/$HANGAR_TURN"
mkdir -p in ${IO.artifacts} "$HANGAR_CONVERSATION"
exec tar -x -f - --no-same-owner
`
