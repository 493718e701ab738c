/** What a judge says of a job's attempts: its result has this shape. */
import { type Static, Type } from '@sinclair/typebox'

/** The attempts in order, each with a reason. */
export const VerdictShape = Type.Object(
  {
    ranking: Type.Array(
      Type.Object(
        { attempt: Type.Integer({ minimum: 1 }), reason: Type.String({ minLength: 1, maxLength: 2_000 }) },
        { additionalProperties: false },
      ),
      { minItems: 1, maxItems: 32, description: 'The best attempt first.' },
    ),
  },
  { additionalProperties: false },
)

export type Verdict = Static<typeof VerdictShape>
