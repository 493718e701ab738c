/** What an agent left in HANGAR_IO, read from a tar of it: summary, result, question, and its artifacts one by one. */
import { isUtf8 } from 'node:buffer'
import { createHash } from 'node:crypto'
import { Readable } from 'node:stream'
import { extract, pack } from 'tar-stream'
import { errors } from '../domain/errors.ts'
import { cutOption, IO, MAX_QUESTION_OPTIONS } from '../domain/hangar-io.ts'
import type { Limits } from '../domain/limits.ts'
import { type SafePath, safeRelativePath } from '../domain/names.ts'
import type { Redactor } from '../domain/redact.ts'

const MAX_WARNINGS = 100

/** An artifact's file within all caps; of one that is not, only a warning tells. */
export interface CollectedArtifact {
  readonly path: SafePath
  readonly content: Buffer
  readonly sha256: string
}

export interface Collected {
  readonly summary: string | null
  /** The bytes of out/result.json as text. */
  readonly resultText: string | null
  /** Why there is one that cannot be taken, in a sentence; null when it can, or there is none. */
  readonly resultRefused: string | null
  readonly question: string | null
  readonly questionOptions: readonly string[]
  readonly artifacts: readonly CollectedArtifact[]
  readonly warnings: readonly string[]
}

export interface CollectOptions {
  /** SHA-256 by path of the artifacts that are in the store: the same bytes are not kept again. */
  readonly known: ReadonlyMap<string, string>
  readonly limits: Limits
  /** Masks secrets in all texts and in artifacts that are text. The result is masked later: its schema is checked on what was written. */
  readonly redactor: Redactor
}

/** Reads the tar to its end and keeps what the contract names, each within its cap; what is left out is named in `warnings`. Throws `limit_passed` on too many entries. */
export async function collectIo(tar: Readable, { known, limits, redactor }: CollectOptions): Promise<Collected> {
  const files = new Map<string, string>()
  const artifacts: CollectedArtifact[] = []
  const warnings: string[] = []
  let resultRefused: string | null = null
  let kept = 0
  let entries = 0
  const untar = extract()
  tar.on('error', (error) => untar.destroy(error))
  tar.pipe(untar)
  for await (const entry of untar) {
    if (++entries > limits.maxIoEntries)
      throw errors.limitPassed(`HANGAR_IO has more than ${limits.maxIoEntries} files and directories`)
    const path = entry.header.name.replace(/^(?:\.\/)+/, '').replace(/\/+$/, '')
    const type = entry.header.type
    const size = entry.header.size ?? 0
    const cap = isText(path) ? textCap(path, limits) : null
    if (cap !== null && type === 'file') {
      const tooLarge = `${path} has ${size} bytes, more than the ${cap} that are taken`
      const content = size > cap ? null : await bytesOf(entry as AsyncIterable<Buffer>)
      if (path === IO.result)
        resultRefused = content === null ? tooLarge : isUtf8(content) ? null : `${path} is not UTF-8`
      if (content === null) warnings.push(`${tooLarge}; it was left out`)
      else files.set(path, decodeText(content))
    } else if (path.startsWith(`${IO.artifacts}/`) && type !== 'directory') {
      const name = path.slice(IO.artifacts.length + 1)
      const refused = refuseArtifact(name, type, size, limits) ?? refuseSecretName(name, redactor)
      if (refused !== null) warnings.push(refused)
      else {
        const content = redactor.file(await bytesOf(entry as AsyncIterable<Buffer>))
        const sha256 = createHash('sha256').update(content).digest('hex')
        if (known.get(name) === sha256) continue
        if (artifacts.length === limits.maxArtifacts)
          warnings.push(`artifact ${name} was left out: at most ${limits.maxArtifacts} new files a turn`)
        else if (kept + content.length > limits.maxArtifactsBytes)
          warnings.push(`artifact ${name} was left out: at most ${limits.maxArtifactsBytes} bytes a turn`)
        else {
          kept += content.length
          artifacts.push({ path: name as SafePath, content, sha256 })
        }
      }
    }
    entry.resume()
  }
  return {
    summary: redactor.text(files.get(IO.summary)?.trim() ?? '') || null,
    resultText: resultRefused === null ? (files.get(IO.result) ?? null) : null,
    resultRefused,
    question: redactor.text(files.get(IO.question)?.trim() ?? '') || null,
    questionOptions: optionsOf(files.get(IO.questionOptions), redactor),
    artifacts,
    warnings: firstOf(warnings),
  }
}

/** A tar of the texts in HANGAR_IO alone, by a reader of single files; of one over its cap, as much as shows that it is. */
export async function textsTar(
  read: (path: string, maxBytes: number) => Promise<Buffer | null>,
  limits: Limits,
): Promise<Readable> {
  const tar = pack()
  for (const path of IO_TEXTS) {
    const content = await read(path, textCap(path, limits) + 1)
    if (content !== null) tar.entry({ name: path }, content)
  }
  tar.finalize()
  return Readable.from(tar as AsyncIterable<Uint8Array>)
}

/** A hostile tree gives a warning for each of its entries. */
function firstOf(warnings: readonly string[]): string[] {
  if (warnings.length <= MAX_WARNINGS) return [...warnings]
  return [...warnings.slice(0, MAX_WARNINGS), `and ${warnings.length - MAX_WARNINGS} more warnings`]
}

/** The texts that an agent hands back, as paths in HANGAR_IO. */
const IO_TEXTS = [IO.summary, IO.result, IO.question, IO.questionOptions] as const

function isText(path: string): path is (typeof IO_TEXTS)[number] {
  return (IO_TEXTS as readonly string[]).includes(path)
}

/** The bytes that are taken of a text. */
function textCap(path: (typeof IO_TEXTS)[number], limits: Limits): number {
  switch (path) {
    case IO.summary:
      return limits.maxSummaryBytes
    case IO.result:
      return limits.maxResultBytes
    case IO.question:
    case IO.questionOptions:
      return limits.maxQuestionBytes
    default:
      return path satisfies never
  }
}

function refuseArtifact(name: string, type: string | undefined | null, size: number, limits: Limits): string | null {
  if (type === 'symlink') return `artifact ${name} is a symbolic link; links are skipped`
  if (type !== 'file') return `artifact ${name} is no regular file (${type ?? 'unknown'}); it was skipped`
  try {
    safeRelativePath(name)
  } catch {
    return `artifact ${JSON.stringify(name)} has a name that is not taken; it was skipped`
  }
  if (name.includes('\ufffd')) return `artifact ${JSON.stringify(name)} has a name that is not UTF-8; it was skipped`
  if (size > limits.maxArtifactBytes)
    return `artifact ${name} has ${size} bytes, more than the ${limits.maxArtifactBytes} that are taken; it was skipped`
  return null
}

/** A name cannot be masked: nobody could ask for the file by it. */
function refuseSecretName(name: string, redactor: Redactor): string | null {
  const shown = redactor.text(name)
  return shown === name ? null : `artifact ${shown} has a secret in its name; it was skipped`
}

/** Up to five answers of 80 characters each; a file of another shape offers none. */
function optionsOf(text: string | undefined, redactor: Redactor): string[] {
  try {
    const { options } = JSON.parse(text ?? '{}') as { options?: unknown }
    if (!Array.isArray(options)) return []
    return options
      .filter((option): option is string => typeof option === 'string')
      .slice(0, MAX_QUESTION_OPTIONS)
      .map((option) => cutOption(redactor.text(option)))
  } catch {
    return []
  }
}

function decodeText(bytes: Buffer): string {
  return bytes.toString('utf8').replace(/^\ufeff/, '')
}

/** The bytes of one file in a tar, as they come. Throws when it is not there. */
export function tarInside(tar: Readable, name: string): Readable {
  const bytes = async function* (): AsyncGenerator<Buffer> {
    const untar = extract()
    tar.on('error', (error) => untar.destroy(error))
    tar.pipe(untar)
    let found = false
    for await (const entry of untar) {
      if (entry.header.name.replace(/^(?:\.\/)+/, '') === name) {
        found = true
        for await (const chunk of entry as AsyncIterable<Buffer>) yield chunk
      }
      entry.resume()
    }
    if (!found) throw errors.internal(`there is no ${name} in the tar`)
  }
  return Readable.from(bytes(), { objectMode: false })
}

async function bytesOf(stream: AsyncIterable<Buffer>): Promise<Buffer> {
  const chunks: Buffer[] = []
  for await (const chunk of stream) chunks.push(chunk)
  return Buffer.concat(chunks)
}
