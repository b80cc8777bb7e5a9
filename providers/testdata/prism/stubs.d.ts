// Types that JSON cannot have: bytes, and components of React.
declare type Buffer = never
declare module "react" {
  export type ReactNode = never
}
