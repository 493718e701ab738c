export type { CommitData, GitObject, ObjectStore, TreeEdit, TreeEntry } from './repository.ts'
