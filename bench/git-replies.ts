/** A git server without any work: to each request it says again what our gateway said to the same bytes. What a client takes with it is the client's own. */
import { type AddressInfo, connect, createServer } from 'node:net'

/** Serves in this process in front of the gateway on a port; its own port is printed. */
export function serveReplies(gateway: number): void {
  const kept = new Map<string, Buffer>()
  const server = createServer((socket) => {
    let got: Buffer = Buffer.alloc(0)
    socket.on('error', () => {})
    socket.on('data', async (chunk) => {
      got = Buffer.concat([got, chunk])
      const size = messageBytes(got)
      if (size === null || got.length < size) return
      const asked = got.toString('latin1', 0, size)
      got = got.subarray(size)
      const reply = kept.get(asked) ?? (await replyTo(asked, gateway))
      kept.set(asked, reply)
      socket.write(reply)
    })
  })
  server.listen(0, '127.0.0.1', () => console.log((server.address() as AddressInfo).port))
}

/** The length of the message that begins here, head and body; null while its head is not whole. */
function messageBytes(bytes: Buffer): number | null {
  const end = bytes.indexOf('\r\n\r\n')
  if (end === -1) return null
  return end + 4 + Number(/^content-length: *(\d+)/im.exec(bytes.toString('latin1', 0, end))?.[1] ?? 0)
}

function replyTo(asked: string, port: number): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    const socket = connect(port, '127.0.0.1', () => socket.write(asked, 'latin1'))
    let got: Buffer = Buffer.alloc(0)
    socket.once('error', reject)
    socket.once('close', () => reject(new Error('the gateway gave no reply of a known length')))
    socket.on('data', (chunk) => {
      got = Buffer.concat([got, chunk])
      const size = messageBytes(got)
      if (size === null || got.length < size) return
      resolve(got.subarray(0, size))
      socket.destroy()
    })
  })
}
