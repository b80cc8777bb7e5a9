package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/safedelivr/safedelivr/models"
	"github.com/safedelivr/safedelivr/models/codec"
	"github.com/safedelivr/safedelivr/store/shapes"
)

var (
	commands = shapes.Table{Name: "commands", Log: true, Group: 2000} // one partition
	rules    = shapes.Table{Name: "rules"}                            // one row; the version is the number of commands
)

// one is the only partition of a table that has no other.
var one = []byte("all")

func decodeCommand(e *shapes.Entry) (models.Command, error) {
	c, err := codec.DecodeCommand(e.Value)
	return c, stored(err)
}

// AppendCommand implements models.Store.
func (s *Store) AppendCommand(ctx context.Context, c models.Command) error {
	return s.db.call(ctx, func() error {
		if c.Number < 1 {
			return models.ErrInvalid
		}
		there, err := s.db.engine.Append(ctx, &commands, one,
			shapes.Entry{Number: c.Number, Token: c.Token[:], Value: codec.EncodeCommand(&c)})
		switch {
		case err != nil || there.Number == 0:
			return err
		case there.Number != c.Number:
			return models.ErrInvalid // the number was removed
		}
		winner, err := decodeCommand(&there)
		if err != nil {
			return err
		}
		return &models.CommandConflictError{Winner: winner}
	}, "append command %d", c.Number)
}

// Commands implements models.Store.
func (s *Store) Commands(ctx context.Context, after, limit int) ([]models.Command, error) {
	return get(ctx, s.db, func() ([]models.Command, error) {
		return read(ctx, s.db, &commands, one, after, limit, decodeCommand)
	}, "commands after %d", after)
}

// PutRules implements models.Store.
func (s *Store) PutRules(ctx context.Context, number int, raw []byte) error {
	return s.db.call(ctx, func() error {
		return s.db.engine.Put(ctx, shapes.Put{Table: &rules, Row: shapes.Row{Part: one, Version: int64(number) + 1,
			Value: codec.Pack(raw)}})
	}, "put rules of %d commands", number)
}

func (s *Store) rules(ctx context.Context) (number int, raw []byte, err error) {
	row, err := s.db.row(ctx, &rules, one, nil)
	if err != nil {
		return 0, nil, err
	}
	raw, err = codec.Unpack(row.Value)
	return int(row.Version) - 1, raw, stored(err)
}

// Rules implements models.Store.
func (s *Store) Rules(ctx context.Context) (number int, raw []byte, err error) {
	err = s.db.call(ctx, func() (err error) {
		number, raw, err = s.rules(ctx)
		return err
	}, "rules")
	return number, raw, err
}

// DropCommands implements models.Store.
func (s *Store) DropCommands(ctx context.Context, upTo int) error {
	return s.db.call(ctx, func() error {
		number, _, err := s.rules(ctx)
		if errors.Is(err, models.ErrNotFound) || err == nil && number <= upTo {
			return fmt.Errorf("%w: no rules of more commands are stored", models.ErrInvalid)
		}
		if err != nil {
			return err
		}
		return s.db.engine.Trim(ctx, &commands, one, upTo+1)
	}, "drop commands up to %d", upTo)
}
