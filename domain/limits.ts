/** Every cap of hangar with its unit and default. Sizes are bytes, times milliseconds. */

export const MB = 1_048_576

export interface Limits {
  /** Context items. */
  readonly maxAttachments: number
  readonly maxAttachmentBytes: number
  readonly maxPatchBytes: number
  readonly maxBundleBytes: number
  /** Refs and prerequisites that a bundle may name, and objects that it may hold. */
  readonly maxBundleRefs: number
  readonly maxBundleObjects: number
  /** Files that a bundle or patch may change, and their bytes in all; a checkpoint is a person's own work tree. */
  readonly maxHandedFiles: number
  readonly maxHandedBytes: number
  readonly maxCheckpointFiles: number
  /** Bytes of untracked files in a checkpoint; an environment may say otherwise. `hangar-agent` has the same default. */
  readonly maxUntrackedBytes: number
  /** What git may take of memory and time while it reads bytes that were handed in. */
  readonly handedMemoryBytes: number
  readonly handedTimeoutMs: number
  readonly maxMessageBytes: number
  readonly maxQueuedTurns: number
  /** An `output_schema` as JSON. */
  readonly maxSchemaBytes: number
  /** What comes back. */
  readonly maxResultBytes: number
  readonly maxSummaryBytes: number
  readonly maxQuestionBytes: number
  readonly maxArtifacts: number
  readonly maxArtifactBytes: number
  readonly maxArtifactsBytes: number
  /** Files and directories in HANGAR_IO, those of earlier turns among them: each is a step of the server's. */
  readonly maxIoEntries: number
  readonly repairTimeoutMs: number
  readonly maxEventTextBytes: number
  /** Files of an agent's conversation: how many, and together. */
  readonly maxConversationFiles: number
  readonly maxConversationBytes: number
  /** What set-ups have made, kept on the server's disk. */
  readonly maxSetupCacheBytes: number
  /** Events of one turn that its output may give; what comes after is counted, not kept. */
  readonly maxTurnEvents: number
  readonly maxTurnEventBytes: number
  /** Largest artifact or patch that an MCP answer holds in itself. */
  readonly inlineArtifactBytes: number
  /** Between looks at a running turn's sandbox: one that is gone or stands still is noticed after twice this, and not much more. */
  readonly sandboxLookMs: number
  /** The git gateway. */
  readonly maxRefUpdates: number
  readonly maxCommandBytes: number
  readonly maxPushBytes: number
  readonly maxPushObjects: number
  readonly maxFetchRequestBytes: number
  readonly maxGitProcesses: number
  /** Answers of upload-pack kept on the disk, of all repos; 0: none. */
  readonly maxPackCacheBytes: number
  readonly gitTimeoutMs: number
  /** One fetch or push, from its slot to its last byte. */
  readonly maxTransferMs: number
  /** REST. */
  readonly maxJsonBytes: number
}

export const DEFAULT_LIMITS: Limits = {
  maxAttachments: 50,
  maxAttachmentBytes: 2 * MB,
  maxPatchBytes: 10 * MB,
  maxBundleBytes: 50 * MB,
  maxBundleRefs: 10_000,
  maxBundleObjects: 500_000,
  maxHandedFiles: 200_000,
  maxHandedBytes: 1024 * MB,
  maxCheckpointFiles: 2_000_000,
  maxUntrackedBytes: 512 * MB,
  handedMemoryBytes: 2048 * MB,
  handedTimeoutMs: 2 * 60_000,
  maxMessageBytes: 256 * 1024,
  maxQueuedTurns: 10,
  maxSchemaBytes: 256 * 1024,
  maxResultBytes: 1024 * 1024,
  maxSummaryBytes: 64 * 1024,
  maxQuestionBytes: 16 * 1024,
  maxArtifacts: 50,
  maxArtifactBytes: 25 * MB,
  maxArtifactsBytes: 100 * MB,
  maxIoEntries: 100_000,
  repairTimeoutMs: 10 * 60_000,
  maxEventTextBytes: 16 * 1024,
  maxConversationFiles: 10_000,
  maxConversationBytes: 256 * MB,
  maxSetupCacheBytes: 20 * 1024 * MB,
  maxTurnEvents: 20_000,
  maxTurnEventBytes: 32 * MB,
  inlineArtifactBytes: 512 * 1024,
  sandboxLookMs: 20_000,
  maxRefUpdates: 5_000,
  maxCommandBytes: 4 * MB,
  maxPushBytes: 2048 * MB,
  maxPushObjects: 20_000_000,
  maxFetchRequestBytes: 64 * MB,
  maxGitProcesses: 8,
  maxPackCacheBytes: 2048 * MB,
  gitTimeoutMs: 30 * 60_000,
  maxTransferMs: 60 * 60_000,
  maxJsonBytes: 96 * MB,
}
