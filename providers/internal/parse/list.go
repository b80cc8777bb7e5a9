package parse

import (
	"errors"
	"fmt"

	"github.com/safedelivr/safedelivr/models"
)

// ListedBounce returns why an address on a provider's list of bounces is suppressed, from the code
// and the text of the list. Only a bounce because of a full mailbox, a policy or the like may end
// differently at another provider: its reason is empty.
func ListedBounce(code, text string) models.SuppressionReason {
	switch NewReply(code, code, text).Reason() {
	case "", models.MailboxInvalid:
		return models.HardBounce
	}
	return ""
}

// ListError returns the error of a request for a provider's suppression lists.
func ListError(list string, err error) error {
	if errors.Is(err, models.ErrNoLookup) {
		err = models.ErrNoLists
	}
	return fmt.Errorf("list %s: %w", list, err)
}
