package liquid

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	upstream "github.com/osteele/liquid"
	"github.com/osteele/liquid/render"

	"github.com/safedelivr/safedelivr/models"
)

// Bounds of rendering a part for a recipient.
const (
	maxPasses = 10_000          // of loops
	maxOutput = 256 << 10       // bytes of all slots of a part
	maxSlot   = 64 << 10        // bytes of a slot
	maxTime   = 5 * time.Second // for all of it
	maxWork   = 32 << 20        // bytes of values that filters read and write, that assign keeps, and that are compared
	element   = 64              // bytes that an element of a list counts
)

const (
	stepTag      = "_step"
	escapeFilter = "_escape"
	tickTag      = "_tick"
	weighTag     = "_weigh"
	payFilter    = "_pay"
	listFilter   = "_list" // makes a list of nil and of an object
	showFilter   = "_show"
	budgetKey    = " budget" // no template can name it
	payKey       = "_safedelivr_pay"
)

// budget is the unused part of the bounds while a part is rendered.
type budget struct {
	ctx    context.Context //nolint:containedctx // it lives as long as one call of Render
	until  time.Time
	passes int
	work   int
	part   *Part
	out    strings.Builder
}

func (b *budget) step() error {
	b.passes++
	if b.passes > maxPasses {
		return fmt.Errorf("loops have more than %d passes", maxPasses)
	}
	return b.tick()
}

// tick returns an error if the time is over.
func (b *budget) tick() error {
	switch {
	case b.ctx.Err() != nil:
		return b.ctx.Err()
	case time.Now().After(b.until):
		return fmt.Errorf("rendering takes longer than %s", maxTime)
	}
	return nil
}

// payer has the budget that a filter takes from. It is a map, because the library copies and calls other values.
type payer map[string]*budget

// pay counts a value that a filter reads or returns, and asks for the time.
func (b *budget) pay(v any) error { return b.spend(sizeOf(v, 0)) }

// spend counts bytes of values, and asks for the time.
func (b *budget) spend(bytes int) error {
	if b.work += bytes; b.work > maxWork {
		return fmt.Errorf("it handles more than %d MiB of values", maxWork>>20)
	}
	return b.tick()
}

// sizeOf returns about how many bytes a value has.
func sizeOf(v any, depth int) int {
	switch v := v.(type) {
	case string:
		return element + len(v)
	case []any:
		n := element * (1 + len(v))
		for i := 0; i < len(v) && depth < maxDepth; i++ {
			n += sizeOf(v[i], depth+1)
		}
		return n
	case map[string]any:
		n := element * (1 + len(v))
		for _, inner := range v {
			if depth < maxDepth {
				n += sizeOf(inner, depth+1)
			}
		}
		return n
	case json.Number:
		return element + len(v)
	}
	return element
}

// Write implements io.Writer.
func (b *budget) Write(p []byte) (int, error) {
	if b.out.Len()+len(p) > maxOutput {
		return 0, fmt.Errorf("the result has more than %d bytes", maxOutput)
	}
	return b.out.Write(p)
}

// engine is the Liquid engine of all templates.
var engine = sync.OnceValue(func() *upstream.Engine {
	e := upstream.NewEngine()
	addFilters(e)
	register := func(tag string, do func(b *budget, ctx render.Context) error) {
		e.RegisterTag(tag, func(ctx render.Context) (string, error) {
			b, ok := ctx.Get(budgetKey).(*budget)
			if !ok {
				return "", errors.New("rendering has no bounds")
			}
			return "", do(b, ctx)
		})
	}
	register(stepTag, func(b *budget, _ render.Context) error { return b.step() })
	register(tickTag, func(b *budget, _ render.Context) error { return b.tick() })
	register(weighTag, func(b *budget, ctx render.Context) error {
		n, err := strconv.Atoi(strings.TrimSpace(ctx.TagArgs()))
		if err != nil {
			return err
		}
		return b.weigh(b.part.blocks[n], ctx.Get)
	})
	return e
})

// Render renders the slots for the variables of a recipient, in the order of Slots. It does
// not change vars. The error is an *Error, or that of ctx.
func (p *Part) Render(ctx context.Context, vars map[string]any) (values []string, err error) {
	if p.program == nil {
		return nil, nil
	}
	b := &budget{ctx: ctx, part: p, until: time.Now().Add(maxTime)}
	bindings := maps.Clone(vars)
	if bindings == nil {
		bindings = map[string]any{}
	}
	bindings[budgetKey], bindings[payKey] = b, payer{"": b}
	if err := p.run(b, bindings); err != nil {
		return nil, err
	}
	values = strings.Split(b.out.String(), mark)
	if len(values) != len(p.Slots)+1 {
		return nil, &Error{1, "a value has a NUL character"}
	}
	values = values[1:]
	for i := range values {
		if p.place == Subject {
			values[i] = models.OneLine(values[i])
		}
		if len(values[i]) > maxSlot {
			return nil, &Error{1, fmt.Sprintf("a piece of it has more than %d bytes for this recipient", maxSlot)}
		}
	}
	return values, nil
}

// run runs the program. A panic of the Liquid library is an error of the template.
func (p *Part) run(b *budget, bindings map[string]any) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &Error{1, fmt.Sprintf("it cannot be rendered: %v", v)}
		}
		if ended := b.ctx.Err(); ended != nil {
			err = ended
		}
	}()
	if failed := p.program.FRender(b, bindings); failed != nil {
		return &Error{max(failed.LineNumber(), 1), plainError(failed.Cause(), failed)}
	}
	return nil
}
