/** Work of many askers, a few pieces at once: askers take turns, so that one with much to do delays mostly itself. */

export interface FairQueue {
  /** Does the work when its turn has come. */
  run<T>(asker: string, work: () => Promise<T>): Promise<T>
  /** Pieces of the asker that have not begun. */
  waiting(asker: string): number
}

/** `atOnce` pieces run side by side; unless there is but one place, no asker holds all of them. */
export function createFairQueue(atOnce: number): FairQueue {
  // In the order of their turns: who was served goes to the end.
  const waiting = new Map<string, (() => Promise<void>)[]>()
  const running = new Map<string, number>()
  const perAsker = Math.max(1, atOnce - 1)
  let places = atOnce

  const next = (): void => {
    while (places > 0) {
      const asker = [...waiting.keys()].find((one) => (running.get(one) ?? 0) < perAsker)
      if (asker === undefined) return
      void start(asker)
    }
  }
  const start = async (asker: string): Promise<void> => {
    const [work, ...later] = waiting.get(asker) ?? []
    waiting.delete(asker)
    if (later.length > 0) waiting.set(asker, later)
    places--
    running.set(asker, (running.get(asker) ?? 0) + 1)
    await work?.()
    places++
    const left = (running.get(asker) ?? 1) - 1
    if (left > 0) running.set(asker, left)
    else running.delete(asker)
    next()
  }
  return {
    run: (asker, work) =>
      new Promise((resolve, reject) => {
        waiting.set(asker, [...(waiting.get(asker) ?? []), () => work().then(resolve, reject)])
        next()
      }),
    waiting: (asker) => waiting.get(asker)?.length ?? 0,
  }
}
