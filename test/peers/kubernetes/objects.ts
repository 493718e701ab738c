/** The peer's object store: one rising resource version, a history that watches read, conflicts, owners. */
import { randomUUID } from 'node:crypto'

/** Any object of the API. */
export interface ApiObject {
  apiVersion?: string
  kind?: string
  metadata: {
    name: string
    namespace?: string
    uid?: string
    resourceVersion?: string
    creationTimestamp?: string
    deletionTimestamp?: string
    deletionGracePeriodSeconds?: number
    labels?: Record<string, string>
    annotations?: Record<string, string>
    ownerReferences?: { readonly uid: string }[]
    [field: string]: unknown
  }
  // biome-ignore lint/suspicious/noExplicitAny: whatever a client sends
  spec?: any
  // biome-ignore lint/suspicious/noExplicitAny: whatever the peer sets
  status?: any
  [field: string]: unknown
}

export interface StoreEvent {
  readonly version: number
  readonly resource: string
  readonly type: 'ADDED' | 'MODIFIED' | 'DELETED'
  readonly object: ApiObject
}

/** An answer of the API that is no success. */
export class ApiFailure extends Error {
  readonly code: number
  readonly reason: string

  constructor(code: number, reason: string, message: string) {
    super(message)
    this.code = code
    this.reason = reason
  }
}

export interface ObjectStore {
  version(): number
  get(resource: string, namespace: string, name: string): ApiObject
  list(resource: string, namespace: string): ApiObject[]
  create(resource: string, namespace: string, object: ApiObject): ApiObject
  /** Changes the stored object by the function's result; the old one is left as it is. */
  change(resource: string, namespace: string, name: string, change: (object: ApiObject) => ApiObject): ApiObject
  remove(resource: string, namespace: string, name: string): ApiObject
  /** Those that name this object as their owner. */
  ownedBy(uid: string): { readonly resource: string; readonly object: ApiObject }[]
  /** Events after a version; null when the history does not reach back so far. */
  since(version: number): readonly StoreEvent[] | null
  /** Forgets the history so far. */
  compact(): void
  onEvent(listener: (event: StoreEvent) => void): () => void
}

export function createObjectStore(): ObjectStore {
  const objects = new Map<string, Map<string, ApiObject>>()
  const listeners = new Set<(event: StoreEvent) => void>()
  let events: StoreEvent[] = []
  let version = 1
  let oldest = 1
  const of = (resource: string) => {
    const found = objects.get(resource) ?? new Map<string, ApiObject>()
    objects.set(resource, found)
    return found
  }
  const emit = (resource: string, type: StoreEvent['type'], object: ApiObject) => {
    version++
    const stored = { ...object, metadata: { ...object.metadata, resourceVersion: String(version) } }
    const event = { version, resource, type, object: stored }
    events.push(event)
    for (const listener of listeners) listener(event)
    return stored
  }
  const get = (resource: string, namespace: string, name: string) => {
    const found = of(resource).get(`${namespace}/${name}`)
    if (found === undefined) throw new ApiFailure(404, 'NotFound', `${resource} "${name}" not found`)
    return found
  }
  return {
    version: () => version,
    get,
    list: (resource, namespace) =>
      [...of(resource).values()].filter(
        (object) => namespace === '' || (object.metadata.namespace ?? '') === namespace,
      ),
    create: (resource, namespace, object) => {
      const { name } = object.metadata
      const key = `${namespace}/${name}`
      if (of(resource).has(key)) throw new ApiFailure(409, 'AlreadyExists', `${resource} "${name}" already exists`)
      const made = {
        ...object,
        metadata: {
          ...object.metadata,
          ...(namespace === '' ? {} : { namespace }),
          uid: randomUUID(),
          creationTimestamp: new Date().toISOString(),
        },
      }
      const stored = emit(resource, 'ADDED', made)
      of(resource).set(key, stored)
      return stored
    },
    change: (resource, namespace, name, change) => {
      const changed = emit(resource, 'MODIFIED', change(get(resource, namespace, name)))
      of(resource).set(`${namespace}/${name}`, changed)
      return changed
    },
    remove: (resource, namespace, name) => {
      const found = get(resource, namespace, name)
      of(resource).delete(`${namespace}/${name}`)
      return emit(resource, 'DELETED', found)
    },
    ownedBy: (uid) =>
      [...objects].flatMap(([resource, all]) =>
        [...all.values()]
          .filter((object) => object.metadata.ownerReferences?.some((owner) => owner.uid === uid))
          .map((object) => ({ resource, object })),
      ),
    since: (from) => (from < oldest ? null : events.filter((event) => event.version > from)),
    compact: () => {
      events = []
      oldest = version + 1
    },
    onEvent: (listener) => {
      listeners.add(listener)
      return () => listeners.delete(listener)
    },
  }
}

/** Whether labels fit a selector of `a=b` and `a in (b,c)` terms. */
export function fits(selector: string | null, labels: Readonly<Record<string, string>> = {}): boolean {
  if (selector === null || selector === '') return true
  return selector.split(/,(?![^(]*\))/).every((term) => {
    const among = /^\s*(\S+) in \(([^)]*)\)\s*$/.exec(term)
    if (among !== null) return (among[2] ?? '').split(',').includes(labels[among[1] ?? ''] ?? '')
    const [name = '', value] = term.split(/==?/)
    return value === undefined ? name in labels : labels[name] === value
  })
}
