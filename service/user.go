package service

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/safedelivr/safedelivr/models"
)

// UserView is a user as operators see it.
type UserView struct {
	ID      string
	Name    string
	Created time.Time
	Paused  bool // nothing of the user's goes out
	Sending Sending
}

// Users lists users by name, as far as they go into a list of maxUsers; all is
// how many there are.
func (s *Service) Users(ctx context.Context, who Caller) (list []UserView, all int, err error) {
	if err := who.operates(); err != nil {
		return nil, 0, err
	}
	users, err := s.users.get(usersAge, func() ([]models.User, error) { return s.store.Users(ctx) })
	if err != nil {
		return nil, 0, storeError("list users", err)
	}
	rules, err := s.rules(ctx)
	if err != nil {
		return nil, 0, err
	}
	sorted := slices.SortedFunc(slices.Values(users), func(a, b models.User) int { return cmp.Compare(a.Name, b.Name) })
	for _, u := range sorted[:min(len(sorted), maxUsers)] {
		list = append(
			list,
			UserView{ID: u.ID, Name: u.Name, Created: u.Created, Paused: rules.Paused(u.ID), Sending: sending(rules, u.ID)},
		)
	}
	return list, len(users), nil
}
