/** The end of what a command prints on two streams, with secrets masked before anything is cut, also those that come in pieces. */
import { StringDecoder } from 'node:string_decoder'
import { MASK, type Redactor } from './redact.ts'

export interface RedactedTail {
  push(chunk: { readonly out: Uint8Array; readonly err: Uint8Array }): void
  /** The last bytes of all that came, at most as many as were asked for; to be called once. */
  end(): string
}

/** Characters of a stream that are held back at most: more than any secret has, and than any tail shows. */
const MAX_HELD = 65_536

/** Streams are put together by whole lines, in the order in which these ended. */
export function createRedactedTail(redactor: Pick<Redactor, 'text'>, maxBytes: number): RedactedTail {
  const out = createLines(redactor)
  const err = createLines(redactor)
  let tail = ''
  const add = (text: string) => {
    tail = (tail + text).slice(-maxBytes)
  }
  return {
    push: (chunk) => {
      add(out.push(chunk.out))
      add(err.push(chunk.err))
    },
    end: () => {
      add(out.end())
      add(err.end())
      return Buffer.from(tail).subarray(-maxBytes).toString('utf8')
    },
  }
}

/** One stream: gives whole lines, masked, and holds back what may be the beginning of a secret. */
function createLines(redactor: Pick<Redactor, 'text'>) {
  const decoder = new StringDecoder('utf8')
  let held = ''
  return {
    push: (bytes: Uint8Array): string => {
      held += decoder.write(Buffer.from(bytes))
      const end = Math.max(held.lastIndexOf('\n'), held.lastIndexOf('\r')) + 1
      const lines = held.slice(0, end)
      if (end > 0 && !mayGoOn(lines)) {
        held = held.slice(end)
        return redactor.text(lines)
      }
      // What begins in the middle of a token goes with it: without its beginning nobody knows it for one.
      if (held.length > MAX_HELD) held = held.slice(-MAX_HELD).replace(/^[\w+/=-]+/, '')
      return ''
    },
    end: (): string => redactor.text(held + decoder.end()),
  }

  /** Whether a secret may go on in the next line, as in base64 that was broken into lines. */
  function mayGoOn(lines: string): boolean {
    return redactor.text(lines.slice(-MAX_HELD).replace(/[\r\n]+/g, '')).endsWith(MASK)
  }
}
