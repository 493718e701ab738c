export type { RefSnapshot, RefStore, RefUpdate, TransactResult } from './repository.ts'
