/** The relay's other end, inside: a port of the sandbox's own loopback for each socket, by whatever the image has that can listen. */

/** Of the sandbox's own loopback. */
export const RELAY_PORTS = { gateway: 4264, proxy: 4265 }
/** Where the relay's directory is bound. */
export const RELAY_DIR = '/run/hangar-net'
/** The gateway's base URL as a sandbox behind the relay reaches it. */
export const RELAY_URL = `http://127.0.0.1:${RELAY_PORTS.gateway}`

/** Variables by which programs find the proxy. */
export function proxyEnvironment(): Record<string, string> {
  const proxy = `http://127.0.0.1:${RELAY_PORTS.proxy}`
  const named = (names: readonly string[], value: string) => names.map((name) => [name, value] as const)
  return Object.fromEntries([
    ...named(['HTTPS_PROXY', 'https_proxy', 'HTTP_PROXY', 'http_proxy'], proxy),
    ...named(['NO_PROXY', 'no_proxy'], '127.0.0.1,localhost'),
  ])
}

/** Any one of these will do, the lightest first. */
export const RELAY_PROGRAMS = ['socat', 'perl', 'python3', 'node'] as const

const PERL = `use strict; use IO::Socket::INET; use IO::Socket::UNIX;
my ($port, $path) = @ARGV;
$SIG{CHLD} = "IGNORE"; $SIG{PIPE} = "IGNORE";
my $listener = IO::Socket::INET->new(LocalAddr => "127.0.0.1", LocalPort => $port, Listen => 128, ReuseAddr => 1) or die "listen: $!";
while (1) {
  my $client = $listener->accept or next;
  my $pid = fork;
  if (!defined $pid || $pid) { close $client; next }
  close $listener;
  my $server = IO::Socket::UNIX->new(Peer => $path) or exit 1;
  my $other = fork;
  exit 1 unless defined $other;
  my ($from, $to) = $other ? ($client, $server) : ($server, $client);
  while (my $count = sysread($from, my $bytes, 65536)) {
    for (my $done = 0; $done < $count;) {
      my $written = syswrite($to, $bytes, $count - $done, $done);
      if (!defined $written) { shutdown($from, 2); exit 1 }
      $done += $written;
    }
  }
  shutdown($to, 1);
  exit 0;
}`

const PYTHON = `import socket, sys, threading
def carry(a, b):
    try:
        while True:
            data = a.recv(65536)
            if not data: break
            b.sendall(data)
        b.shutdown(socket.SHUT_WR)
    except OSError:
        for s in (a, b):
            try: s.shutdown(socket.SHUT_RDWR)
            except OSError: pass
def serve(client):
    server = socket.socket(socket.AF_UNIX)
    try: server.connect(sys.argv[2])
    except OSError:
        client.close()
        return
    back = threading.Thread(target=carry, args=(server, client), daemon=True)
    back.start()
    carry(client, server)
    back.join()
    client.close()
    server.close()
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", int(sys.argv[1])))
listener.listen(128)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()`

const NODE = `const net = require("node:net");
const [port, path] = process.argv.slice(1);
net.createServer({ allowHalfOpen: true }, (client) => {
  const server = net.connect({ path, allowHalfOpen: true });
  client.pipe(server); server.pipe(client);
  client.on("error", () => server.destroy()); server.on("error", () => client.destroy());
  client.on("close", () => client.readableEnded || server.destroy()); server.on("close", () => server.readableEnded || client.destroy());
}).listen(Number(port), "127.0.0.1");`

/** A script of sh that keeps both ends listening, begun with the container as the user that its first process has. */
export function relayScript({ dir, ports }: { readonly dir: string; readonly ports: typeof RELAY_PORTS }): string {
  return `
listen() {
  if command -v socat; then socat "TCP-LISTEN:$1,bind=127.0.0.1,fork,reuseaddr" "UNIX-CONNECT:$2"
  elif command -v perl; then perl -e '${PERL}' "$1" "$2"
  elif command -v python3; then python3 -c '${PYTHON}' "$1" "$2"
  elif command -v node; then node -e '${NODE}' "$1" "$2"
  else sleep 3600; fi >/dev/null 2>&1
}
keep() { while :; do listen "$1" "$2"; sleep 1; done; }
keep ${ports.gateway} ${dir}/gateway.sock &
if [ -e ${dir}/proxy.sock ]; then keep ${ports.proxy} ${dir}/proxy.sock & fi
wait
`
}
