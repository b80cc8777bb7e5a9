package api

import (
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/safedelivr/safedelivr/models"
)

// keyTTL is how long a key is remembered: a revocation takes effect within it.
const keyTTL = time.Second

// keyCache spares the store a read per request of a busy key.
type keyCache struct {
	mu   sync.Mutex
	keys map[string]cachedKey
}

type cachedKey struct {
	key  models.Key
	read time.Time
}

func (k *keyCache) get(hash string) (models.Key, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c, ok := k.keys[hash]
	return c.key, ok && time.Since(c.read) < keyTTL
}

func (k *keyCache) put(hash string, key models.Key, read time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.keys == nil || len(k.keys) > 1000 {
		k.keys = map[string]cachedKey{}
	}
	k.keys[hash] = cachedKey{key: key, read: read}
}

const userKey = "user"

// authenticate finds the user of the API key in Authorization: Bearer.
func (s *Server) authenticate(c *gin.Context) {
	scheme, secret, _ := strings.Cut(c.GetHeader("Authorization"), " ")
	secret = strings.TrimSpace(secret)
	if !strings.EqualFold(scheme, "Bearer") || secret == "" {
		problem(http.StatusUnauthorized, "no_key", "Send the API key as Authorization: Bearer <key>.").write(c)
		return
	}
	if !models.LooksLikeSecret(secret) {
		problem(http.StatusUnauthorized, "wrong_key", "This API key does not exist.").write(c)
		return
	}
	hash := models.HashSecret(secret)
	key, ok := s.keys.get(hash)
	if !ok {
		read := time.Now()
		var err error
		key, err = s.store.KeyByHash(c.Request.Context(), hash)
		if errors.Is(err, models.ErrNotFound) {
			problem(http.StatusUnauthorized, "wrong_key", "This API key does not exist.").write(c)
			return
		}
		if err != nil {
			s.storeProblem(c, "find key", err).write(c)
			return
		}
		s.keys.put(hash, key, read)
	}
	if !key.Revoked.IsZero() {
		problem(http.StatusUnauthorized, "revoked_key", "This API key was revoked.").write(c)
		return
	}
	c.Set(userKey, key.User)
	c.Next()
}

func user(c *gin.Context) string { return c.GetString(userKey) }
