/** Room for large request bodies: only so many bytes of them are worked on at once, the others wait unread. */

export interface BodyRoom {
  /** Resolves with the release when there is room, in the order of asking; small bodies do not wait. Rejects when the signal aborts. */
  take(bytes: number, signal: AbortSignal): Promise<() => void>
}

/** Bodies up to this size are not counted. */
const SMALL_BYTES = 1_048_576

interface Waiting {
  readonly bytes: number
  go(): void
}

/** `total` is at least the largest body that is taken. */
export function createBodyRoom(total: number): BodyRoom {
  const waiting: Waiting[] = []
  let free = total
  const next = () => {
    for (let first = waiting[0]; first !== undefined && first.bytes <= free; first = waiting[0]) {
      waiting.shift()
      free -= first.bytes
      first.go()
    }
  }
  return {
    take: (asked, signal) => {
      if (asked <= SMALL_BYTES) return Promise.resolve(() => {})
      const bytes = Math.min(asked, total)
      return new Promise((resolve, reject) => {
        const givenUp = () => {
          const place = waiting.indexOf(entry)
          if (place >= 0) waiting.splice(place, 1)
          reject(signal.reason)
          next()
        }
        const entry: Waiting = {
          bytes,
          go: () => {
            signal.removeEventListener('abort', givenUp)
            let held = bytes
            resolve(() => {
              free += held
              held = 0
              next()
            })
          },
        }
        if (signal.aborted) return reject(signal.reason)
        signal.addEventListener('abort', givenUp, { once: true })
        waiting.push(entry)
        next()
      })
    },
  }
}
