package main

import (
	"fmt"
	"os"
	"time"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/suppression"
)

// suppressedList is the number of addresses on the suppression list.
const suppressedList = 1_000_000

// suppressed measures deliverRun for a user with a long suppression list that has none of the recipients. It compares a
// run where another user has the list, so that the store is as large. The two take turns.
func (b *bench) suppressed(be *backend) error {
	title := fmt.Sprintf("accept to provider, %s recipients in posts of 1,000, suppression list of %s",
		thousands(int64(b.deliver)), thousands(suppressedList))
	fmt.Fprintln(os.Stderr, be.title+":", title)
	var without []float64
	var cpuWithout time.Duration
	rate, cpu, err := median(b.runs, func() (float64, [2]time.Duration, error) {
		plain, used, err := b.deliverRun(be, &rigOptions{warm: true, seed: b.putSuppressions("hostile")}, b.deliver, 1000)
		if err != nil {
			return 0, [2]time.Duration{}, err
		}
		without, cpuWithout = append(without, plain), cpuWithout+used[0]
		return b.deliverRun(be, &rigOptions{warm: true, seed: b.putSuppressions("bench")}, b.deliver, 1000)
	})
	if err != nil {
		return err
	}
	n := 0
	plain, _, err := median(len(without), func() (float64, struct{}, error) {
		n++
		return without[n-1], struct{}{}, nil
	})
	b.report.add(be, title, rate, "recipients/s",
		fmt.Sprintf("processor time of the product per recipient: %.1f us, without a list %.1f us",
			cpu[0].Seconds()*1e6/float64(b.deliver),
			cpuWithout.Seconds()*1e6/float64(b.deliver*len(without))),
		base{"without a list", plain})
	return err
}

// putSuppressions returns a function that stores the list of a user.
func (b *bench) putSuppressions(user string) func(models.Store) error {
	return func(s models.Store) error {
		u, err := s.UserByName(b.ctx, user)
		if err != nil {
			return err
		}
		return b.putList(s, u.ID)
	}
}

func (b *bench) putList(s models.Store, list string) error {
	lists := suppression.New(s, suppression.DefaultMemory)
	now := time.Now()
	for n := 0; n < suppressedList; {
		es := make([]models.Suppression, suppression.MaxMarks)
		for i := range es {
			es[i] = models.NewSuppression(fmt.Sprintf("other%d@bench.test", n), models.Manual, models.FromImport, now)
			n++
		}
		if err := lists.Add(b.ctx, list, es...); err != nil {
			return err
		}
	}
	return nil
}
