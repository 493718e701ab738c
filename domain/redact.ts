/** Takes secrets out of what leaves a sandbox: by value, where the value is known, in every form it may take; hangar's own by their shape. */

import type { Log } from './ports.ts'

export const MASK = '[redacted]'
/** Secrets under this length are left alone: masking them would garble ordinary text. */
const MIN_SECRET = 6
/** A piece of a secret at the border of a text is masked from this length on: the other piece may be in the next chunk. */
const MIN_PIECE = 8
/** hangar's own tokens and grants. */
const OWN = /hg[ts]_[A-Za-z0-9]{20,}/g
const OWN_DECODED = /hg[ts]_[A-Za-z0-9]{40,}/
/** Bytes of a file that are looked at to tell text from binary. */
const SNIFFED_BYTES = 8_000

export interface Redactor {
  /**
   * The text with every known secret masked: plain, JSON-escaped, URL-encoded, hex, base64 at any offset (also url-safe, also broken into
   * lines). The text counts as a chunk of a longer one: a piece of a secret at either end, 8 characters or more, is masked as well.
   */
  text(text: string): string
  /** A JSON value with its strings and keys masked; a number that is a secret becomes the mask. */
  json(value: unknown): unknown
  /** A file's bytes: text is masked, binary (a NUL in its first 8,000 bytes) stays as it is. */
  file(content: Buffer): Buffer
}

/** A redactor for the given secret values; each line of a secret of several lines counts as one too. */
export function createRedactor(secrets: readonly string[]): Redactor {
  const values = [...new Set(secrets.flatMap((secret) => [secret, ...secret.split(/\r?\n/)]))]
    .map((value) => value.trim())
    .filter((value) => value.length >= MIN_SECRET)
  const forms = [...new Set(values.flatMap(secretForms))].sort((a, b) => b.length - a.length)
  const bytes = forms.map((form) => Buffer.from(form, 'utf8'))
  const broken = forms.filter((form) => form.length > MIN_PIECE && /^[A-Za-z0-9+/_=-]+$/.test(form)).map(acrossLines)

  const whole = (text: string) => {
    let out = text
    for (const form of forms) if (out.includes(form)) out = out.split(form).join(MASK)
    if (/[\r\n]/.test(out)) for (const pattern of broken) out = out.replace(pattern, MASK)
    return maskOwnEncoded(out.replace(OWN, MASK))
  }
  const text = (text: string) => maskEnds(whole(text), forms)
  const json = (value: unknown): unknown => {
    if (typeof value === 'string') return text(value)
    if (typeof value === 'number') return values.includes(String(value)) ? MASK : value
    if (Array.isArray(value)) return value.map(json)
    if (typeof value !== 'object' || value === null) return value
    return Object.fromEntries(Object.entries(value).map(([key, inner]) => [text(key), json(inner)]))
  }
  return {
    text,
    json,
    file: (content) => {
      if (content.subarray(0, SNIFFED_BYTES).includes(0)) return content
      const suspect =
        bytes.some((form) => content.includes(form)) || OWN_PREFIXES.some((prefix) => content.includes(prefix))
      const lines = broken.length > 0 && content.includes(10)
      if (!suspect && !lines) return content
      // As latin1 every byte stays itself; the forms are looked for as their UTF-8 bytes.
      const before = content.toString('latin1')
      let after = before
      for (const form of bytes) after = after.split(form.toString('latin1')).join(MASK)
      for (const pattern of broken) after = after.replace(pattern, MASK)
      after = maskOwnEncoded(after.replace(OWN, MASK))
      return after === before ? content : Buffer.from(after, 'latin1')
    },
  }
}

/** The same log, with secrets masked in all it is told. */
export function redactedLog(log: Log, redactor: Redactor): Log {
  const masked =
    (write: Log['info']): Log['info'] =>
    (fields, message) =>
      write(redactor.json(fields) as Record<string, unknown>, redactor.text(message))
  return {
    info: masked((fields, message) => log.info(fields, message)),
    warn: masked((fields, message) => log.warn(fields, message)),
    error: masked((fields, message) => log.error(fields, message)),
  }
}

/** A secret as it is, and as JSON, URLs, hex and base64 (at any offset) spell it. */
export function secretForms(secret: string): string[] {
  const hex = Buffer.from(secret, 'utf8').toString('hex')
  const encoded = encodeURIComponent(secret)
  const strict = encoded.replace(/[!'()*]/g, (character) => `%${character.charCodeAt(0).toString(16).toUpperCase()}`)
  // Paths keep their slashes, whole addresses their other marks as well.
  const kept = [encoded.replace(/%2F/g, '/'), strict.replace(/%2F/g, '/'), encodeURI(secret)]
  const percent = [encoded, strict, strict.replace(/%20/g, '+'), ...kept, hex.toUpperCase().replace(/../g, '%$&')]
  return [
    secret,
    ...jsonForms(secret),
    ...percent,
    ...percent.map((form) => form.replace(/%[0-9A-F]{2}/g, (code) => code.toLowerCase())),
    hex,
    hex.toUpperCase(),
    ...base64Forms(secret).flatMap((form) => [form, form.replace(/\+/g, '-').replace(/\//g, '_')]),
  ].filter((form) => form.length >= MIN_SECRET)
}

/** In a JSON text, in one that is a string of another, and as those write it that escape slashes. */
function jsonForms(secret: string): string[] {
  const escaped = (text: string) => JSON.stringify(text).slice(1, -1)
  const once = [escaped(secret), escaped(secret).replace(/\//g, '\\/')]
  return [...once, ...once.map(escaped), escaped(escaped(secret)).replace(/\//g, '\\/')]
}

/** A secret inside a longer base64 text shows in one of three forms, by its offset modulo 3; the border characters are cut off. */
function base64Forms(secret: string): string[] {
  return [0, 1, 2].map((offset) => {
    const encoded = Buffer.concat([Buffer.alloc(offset), Buffer.from(secret)])
      .toString('base64')
      .replace(/=+$/, '')
    const from = offset === 0 ? 0 : offset + 1
    const whole = Math.floor(((offset + Buffer.byteLength(secret)) * 8) / 6)
    return encoded.slice(from, whole)
  })
}

/** The form with a line break allowed between any two of its characters: `base64` and others wrap their lines. */
function acrossLines(form: string): RegExp {
  return new RegExp([...form].map((character) => character.replace(/[+]/, '\\$&')).join('(?:\\r?\\n)?'), 'g')
}

/** Masks a piece of a secret that the text ends or begins with, or that it is as a whole. */
function maskEnds(text: string, forms: readonly string[]): string {
  let out = text
  for (const form of forms) {
    if (out.length < MIN_PIECE || form.length <= MIN_PIECE) continue
    if (out.length < form.length && form.includes(out)) return MASK
    const tail = lastPieceAt(out, form)
    if (tail !== -1) out = out.slice(0, tail) + MASK
    const head = firstPieceEnd(out, form)
    if (head !== -1) out = MASK + out.slice(head)
  }
  return out
}

/** Where the text's end begins to be the form's beginning; -1 when it is not, for at least 8 characters. */
function lastPieceAt(text: string, form: string): number {
  const start = form.slice(0, MIN_PIECE)
  let at = text.indexOf(start, Math.max(0, text.length - form.length))
  while (at !== -1 && !form.startsWith(text.slice(at))) at = text.indexOf(start, at + 1)
  return at
}

/** Where the form's end that the text begins with ends; -1 when there is none, of at least 8 characters. */
function firstPieceEnd(text: string, form: string): number {
  const end = form.slice(-MIN_PIECE)
  const limit = text.slice(0, form.length)
  let at = limit.lastIndexOf(end)
  while (at !== -1 && !form.endsWith(limit.slice(0, at + MIN_PIECE)))
    at = at === 0 ? -1 : limit.lastIndexOf(end, at - 1)
  return at === -1 ? -1 : at + MIN_PIECE
}

const OWN_BASE64 = ['hgt_', 'hgs_'].flatMap((prefix) => base64Forms(prefix))
const OWN_PREFIXES = ['hgt_', 'hgs_', ...OWN_BASE64]
const OWN_ENCODED = new RegExp(`[A-Za-z0-9+/_-]{0,3}(?:${OWN_BASE64.join('|')})[A-Za-z0-9+/_-]{40,}={0,2}`, 'g')

/** hangar's own in base64: a candidate is masked when it decodes to one, at any of the three offsets, so that other base64 stays whole. */
function maskOwnEncoded(text: string): string {
  if (!OWN_BASE64.some((form) => text.includes(form))) return text
  return text.replace(OWN_ENCODED, (candidate) => (holdsOwn(candidate) ? MASK : candidate))
}

function holdsOwn(candidate: string): boolean {
  return [0, 1, 2, 3].some((skip) => OWN_DECODED.test(Buffer.from(candidate.slice(skip), 'base64').toString('latin1')))
}
