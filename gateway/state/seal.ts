import type { Clock } from '../../domain/ports.ts'

export interface Sealer {
  seal(bytes: Uint8Array): Promise<Uint8Array>
  open(bytes: Uint8Array): Promise<Uint8Array>
}

export function createSealer(_deps: { keyFile: string; clock: Clock }): Promise<Sealer> {
  throw new Error('not built')
}
