/** The part of `ws` that the peer uses; the package has no declarations of its own. */
declare module 'ws' {
  import type { EventEmitter } from 'node:events'
  import type { IncomingMessage } from 'node:http'
  import type { Duplex } from 'node:stream'

  export class WebSocket extends EventEmitter {
    readonly protocol: string
    readonly bufferedAmount: number
    send(data: Uint8Array, sent?: (error?: Error) => void): void
    close(code?: number): void
    terminate(): void
    pause(): void
  }

  export class WebSocketServer {
    constructor(options: {
      readonly noServer: true
      readonly autoPong?: boolean
      readonly handleProtocols: (offered: Set<string>) => string | false
    })
    handleUpgrade(request: IncomingMessage, socket: Duplex, head: Buffer, done: (socket: WebSocket) => void): void
  }
}
