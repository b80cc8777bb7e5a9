package dialect

// interim
type Names struct{}
type named struct{ Filename, Type, ContentID string }

func (*Names) Attachment(name, kind, id string) named { return named{name, kind, id} }
func (*Names) Rewrite(h string) string                 { return h }
