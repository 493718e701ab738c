/** Takes secrets out of text that leaves a sandbox: by value, where the value is known, and by shape for hangar's own. */

const OWN_SHAPES = /\bhg[ts]_[A-Za-z0-9]{20,}/g
const MASK = '[redacted]'

export interface Redactor {
  /** The text with every known secret masked, plain or in base64. */
  text(text: string): string
}

/** A redactor for the given secret values; values under 6 characters are left alone, since masking them would garble text. */
export function createRedactor(secrets: readonly string[]): Redactor {
  const values = secrets
    .filter((secret) => secret.length >= 6)
    .flatMap((secret) => [secret, ...base64Forms(secret)])
    .sort((a, b) => b.length - a.length)
  return {
    text: (text) => {
      let out = text
      for (const value of values) if (out.includes(value)) out = out.split(value).join(MASK)
      return out.replace(OWN_SHAPES, MASK)
    },
  }
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
